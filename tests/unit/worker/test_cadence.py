"""Every fragment is pushed once in each interval, and the pushes are spread over it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from syncline.core.cadence import Cadence

FRAGMENTS, GROUPS, EVERY = st.integers(1, 12), st.integers(1, 20), st.integers(1, 40)


def pushes(cadence: Cadence, steps: range) -> dict[int, list[int]]:
    """By step, what was pushed, where everybody pushes when told."""
    found: dict[int, list[int]] = {}
    for step in steps:
        if due := cadence.due(step):
            cadence.pushed(due, step)
            found[step] = due
    return found


@given(FRAGMENTS, GROUPS, EVERY, st.integers(0, 1000))
def test_each_fragment_comes_once_in_each_interval(
    fragments: int, groups: int, every: int, start: int
) -> None:
    cadence = Cadence(fragments, groups, every, start)
    for interval in range(3):
        begin = start + interval * every
        found = pushes(cadence, range(begin + 1, begin + every + 1))
        counted = Counter(fragment for due in found.values() for fragment in due)
        assert counted == Counter(range(fragments))


@given(FRAGMENTS, GROUPS, EVERY)
def test_no_step_has_more_groups_than_it_must(fragments: int, groups: int, every: int) -> None:
    groups = min(groups, fragments)
    found = pushes(Cadence(fragments, groups, every), range(1, 2 * every + 1))
    for due in found.values():
        assert len({(fragment - fragments) % groups for fragment in due}) <= -(-groups // every)


@given(FRAGMENTS, GROUPS, EVERY, EVERY, st.integers(1, 100))
def test_another_interval_is_dealt_in_the_order_that_was(
    fragments: int, groups: int, every: int, then: int, steps: int
) -> None:
    cadence = Cadence(fragments, groups, every)
    pushes(cadence, range(1, steps + 1))
    last, upcoming = cadence.since, pushes_in_order(every, fragments, groups, steps)
    cadence.adopt(then)
    found = pushes(cadence, range(last + 1, last + then + 1))
    order = [fragment for step in sorted(found) for fragment in found[step]]
    assert Counter(order) == Counter(range(fragments))
    if then >= groups and every >= groups:
        first = found[min(found)]
        assert first == upcoming


def pushes_in_order(every: int, fragments: int, groups: int, steps: int) -> list[int]:
    """What would come next, without a change."""
    cadence = Cadence(fragments, groups, every)
    found = pushes(cadence, range(1, steps + every + 1))
    return next(found[step] for step in sorted(found) if step > steps)


@given(FRAGMENTS, GROUPS, EVERY)
def test_one_group_is_the_whole_model_at_the_end_of_the_interval(
    fragments: int, groups: int, every: int
) -> None:
    assert pushes(Cadence(fragments, 1, every), range(1, every + 1)) == {
        every: list(range(fragments))
    }
    alone = pushes(Cadence(fragments, max(groups, fragments), every), range(1, every + 1))
    if every >= fragments:
        assert all(len(due) == 1 for due in alone.values())


def test_who_comes_late_has_the_next_turn_where_it_was() -> None:
    cadence = Cadence(2, 2, 10)
    assert cadence.due(7) == [0]
    cadence.pushed([0], 7)
    assert cadence.due(10) == [1]
    assert cadence.due(15) == [0, 1]
