"""Every group is pushed once in each interval."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syncline.core.cadence import Cadence

GROUPS, EVERY = st.integers(1, 12), st.integers(1, 40)


@given(GROUPS, EVERY, st.integers(0, 1000))
def test_each_group_comes_once_in_each_interval(groups: int, every: int, start: int) -> None:
    cadence, counts = Cadence(groups, every, start), list[int]()
    for step in range(start + 1, start + 3 * every + 1):
        counts.append(cadence.due(step))
        cadence.pushed(cadence.due(step), step)
    assert all(sum(counts[i : i + every]) == groups for i in range(0, 3 * every, every))
    assert max(counts) <= -(-groups // every)


@given(GROUPS, EVERY, EVERY, st.integers(0, 200))
def test_another_interval_counts_from_the_last_push(
    groups: int, every: int, then: int, steps: int
) -> None:
    cadence, last = Cadence(groups, every), 0
    for step in range(1, steps + 1):
        if due := cadence.due(step):
            cadence.pushed(due, step)
            last = step
    cadence.adopt(then, steps)
    first = next(step for step in range(steps, steps + 2 * then + 1) if cadence.due(step))
    assert first <= max(steps, last + -(-then // groups))


def test_one_group_is_due_at_the_end_of_the_interval() -> None:
    cadence = Cadence(1, 4)
    assert [cadence.due(step) for step in range(6)] == [0, 0, 0, 0, 1, 1]
    cadence.pushed(1, 4)
    assert [cadence.due(step) for step in range(4, 9)] == [0, 0, 0, 0, 1]


def test_what_was_due_and_not_pushed_stays_due_but_once() -> None:
    cadence = Cadence(4, 4)
    cadence.pushed(0, 2)
    assert [cadence.due(step) for step in (2, 3, 4)] == [2, 3, 4]
    cadence.pushed(0, 40)
    assert cadence.due(40) == 4
    cadence.pushed(4, 40)
    assert [cadence.due(step) for step in (40, 41)] == [0, 1]
