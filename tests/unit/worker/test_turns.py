"""Replicas of any speed push in one order, and come into step: a joiner is soon in every round.

By steps or by time, all together or group by group, with any overlap: see
``syncline_testing/simulated.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from syncline.core.turns import Turns
from syncline_testing.simulated import FRAGMENTS, SETTINGS, SYNC_EVERY, Place, Replica


def following(revisions: list[int], pending: set[int], groups: int, count: int) -> list[list[int]]:
    ready = set(range(len(revisions))) - pending
    return Turns(len(revisions), groups).following(revisions, pending, ready, count)


def test_the_group_that_is_furthest_behind_is_next_and_the_last_fragments_comes_last() -> None:
    assert following([1, 1, 1, 1, 1], set(), 2, 1) == [[1, 3]]
    assert following([1, 2, 1, 2, 1], set(), 2, 1) == [[0, 2, 4]]
    assert following([1, 1, 1, 1, 1], {1, 3}, 2, 1) == [[0, 2, 4]]
    assert following([3, 3, 3], set(), 10, 2) == [[0], [1]]
    assert following([3, 2, 3], set(), 10, 1) == [[1]]
    assert following([1, 1, 1], set(), 1, 1) == [[0, 1, 2]]


def test_nothing_is_pushed_before_what_it_comes_after() -> None:
    assert following([1, 2, 2], {0}, 3, 2) == [], "the first is under way, and next"
    turns = Turns(3, 3)
    assert turns.following([1, 1, 1], set(), {1, 2}, 2) == []
    assert turns.following([1, 1, 1], set(), {1, 2}, None) == [[1], [2]], "who leaves"
    assert following([3, 9, 4, 9, 4], set(), 2, 5) == [[0]], "the first is behind still"
    assert following([4, 3], set(), 1, 2) == [[1]]
    assert following([4, 3], {1}, 1, 1) == [], "what is under way may be the last of all"


def test_what_is_under_way_may_be_in_the_way_of_the_next_push() -> None:
    turns = Turns(5, 2)  # [1, 3] and [0, 2, 4]
    assert turns.in_the_way([1, 1, 1, 1, 1], {0, 1, 2, 3, 4}, 1) == [1, 3]
    assert turns.in_the_way([1, 1, 1, 1, 1], {0, 1, 2, 3, 4}, 2) == [0, 1, 2, 3, 4]
    assert turns.in_the_way([1, 1, 1, 1, 1], {1, 3}, 1) == []
    assert turns.in_the_way([1, 1, 1, 1, 1], {1, 3}, 2) == [1, 3]
    assert turns.in_the_way([1, 2, 1, 2, 1], {1, 3}, 2) == [], "the other group is next, twice"


def test_how_many_groups_come_before_the_last_fragment_is_seen_as_turns_are() -> None:
    turns = Turns(5, 4)  # [1], [2], [3] and [0, 4]
    assert turns.before_last([1, 1, 1, 1, 1], set(), 9) == 3
    assert turns.before_last([1, 1, 1, 1, 1], set(), 2) == 2, "of so many"
    assert turns.before_last([1, 1, 1, 1, 1], {1, 2}, 9) == 1
    assert turns.before_last([1, 2, 1, 1, 1], {2, 3}, 9) == 0, "the first is ahead"
    assert turns.before_last([1, 1, 1, 1, 1], {0, 1, 2, 3, 4}, 9) == 3, "of the round after it"
    assert turns.before_last([1, 2, 2, 2, 2], set(), 9) == 4, "the first of all is behind"


def test_what_is_behind_the_last_fragment_only_catches_up() -> None:
    turns = Turns(5, 2)  # [1, 3] and [0, 2, 4]
    even = [2, 2, 2, 2, 2]
    assert turns.of_interval([[1, 3]], even) == (1, None)
    assert turns.of_interval([[1, 3], [0, 2, 4]], even) == (2, 0)
    assert turns.of_interval([[0, 2, 4], [1, 3]], even) == (2, 1), "the next interval's"
    assert turns.of_interval([[1]], [2, 1, 2, 2, 2]) == (0, None), "a part"
    assert turns.of_interval([[0, 2], [1, 3]], [1, 2, 1, 2, 2]) == (1, None)
    assert turns.of_interval([[1]], [2, 2, 2, 3, 2]) == (1, None), "it is the other that is ahead"
    assert turns.of_interval([[4]], [2, 2, 2, 2, 1]) == (1, 0), "what is the last takes a turn"
    assert turns.of_interval([[1, 3], [0, 2, 4]], [2, 1, 2, 1, 2]) == (1, 0), "a whole group"


def test_where_no_round_waits_it_is_seen_by_own_pushes_what_is_behind() -> None:
    turns = Turns(2, 2, by_revision=False)
    assert turns.of_interval([[0], [1]], [1, 5]) == (2, 0)
    turns.landed(1)
    assert turns.of_interval([[0], [1]], [9, 1]) == (1, 0)


def test_of_a_group_those_that_are_ahead_sit_one_push_out() -> None:
    assert following([1, 2, 1], set(), 1, 1) == [[0, 2]]


step_seconds = st.sampled_from([0.0002, 0.002, 0.01, 0.1])
ways = st.tuples(st.integers(1, FRAGMENTS + 1), st.integers(0, SYNC_EVERY))
"""Groups, and steps of overlap."""
triggers = st.sampled_from([None, None, 0.02, 0.25])
"""How long an interval is; None: by inner steps."""


def later(rounds: Iterable[tuple[float, int]], than_s: float) -> list[int]:
    return [pushes for closed_s, pushes in rounds if closed_s > than_s]


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@example(seed=652641, way=(2, 4), seconds=None, first=0.0002, others=[0.002, 0.1])
@given(
    seed=st.integers(0, 10**6),
    way=ways,
    seconds=triggers,
    first=step_seconds,
    others=st.lists(step_seconds, max_size=2),
)
def test_joiners_are_soon_in_every_round_of_every_fragment(
    seed: int, way: tuple[int, int], seconds: float | None, first: float, others: list[float]
) -> None:
    place = Place(seed)
    replicas = [Replica("first", first, place, *way, seconds)]
    for number, step_s in enumerate(others):
        place.run(place.now_s + place.random.uniform(0.5, 1.5))
        replicas.append(Replica(f"joiner-{number}", step_s, place, *way, seconds))
    interval_s = SYNC_EVERY * (0.03 + max([first, *others])) + (seconds or 0.0)
    place.run(place.now_s + 1.0 + 6 * interval_s)
    settled_s = place.now_s
    place.run(settled_s + 1.0 + 6 * interval_s)
    for rounds in place.rounds:
        assert len(later(rounds, settled_s)) >= 4, "rounds go on"
        assert set(later(rounds, settled_s)) == {len(replicas)}, "everybody is in every one of them"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    way=ways,
    seconds=triggers,
    step_s=step_seconds,
    end_s=st.floats(0.6, 2.0),
)
def test_a_loss_at_any_instant_stops_nobody(
    seed: int, way: tuple[int, int], seconds: float | None, step_s: float, end_s: float
) -> None:
    place = Place(seed)
    survivor = Replica("survivor", 0.01, place, *way, seconds)
    place.run(0.5)
    lost = Replica("lost", step_s, place, *way, seconds)
    place.run(end_s)
    lost.die()
    place.run(end_s + 2.0)
    for fragment, rounds in enumerate(place.rounds):
        assert len(later(rounds, end_s + 0.7)) >= 4
        assert set(later(rounds, end_s + 0.7)) == {1}
        assert survivor.revisions[fragment] >= place.cores[fragment].saved.revision - 1


@settings(max_examples=200, deadline=None)
@example(seed=0, way=(4, 4), seconds=None, first=0.01, others=[0.1], budget=9, joins_s=0.0)
@example(seed=1, way=(3, 2), seconds=None, first=0.01, others=[0.01], budget=60, joins_s=0.05)
@given(
    seed=st.integers(0, 10**6),
    way=ways,
    seconds=triggers,
    first=step_seconds,
    others=st.lists(step_seconds, max_size=2),
    budget=st.integers(1, 150),
    joins_s=st.floats(0.0, 2.0),
)
def test_everybody_ends_with_the_revisions_that_are_published(
    seed: int,
    way: tuple[int, int],
    seconds: float | None,
    first: float,
    others: list[float],
    budget: int,
    joins_s: float,
) -> None:
    place = Place(seed, budget=budget)
    replicas = [Replica("first", first, place, *way, seconds)]
    for number, step_s in enumerate(others):
        place.run(place.now_s + place.random.uniform(0.0, joins_s))
        replicas.append(Replica(f"joiner-{number}", step_s, place, *way, seconds))
    place.run(place.now_s + 200.0)
    ends = [core.saved.revision for core in place.cores]
    assert all(replica.is_done for replica in replicas)
    assert all(replica.revisions == ends for replica in replicas)
    assert len(set(ends)) == 1 and place.cores[-1].saved.committed_tokens >= budget


@pytest.mark.parametrize("way", [(1, 0), (1, 3), (3, 3)])
def test_by_time_the_slowest_costs_the_others_next_to_nothing(way: tuple[int, int]) -> None:
    place, steps_s, run_s = Place(7), [0.01, 0.01, 0.01, 0.04], 100.0
    for number, step_s in enumerate(steps_s):
        Replica(f"replica-{number}", step_s, place, *way, 2.0)
    place.run(run_s)
    alone = sum(place.newest.at_s / step_s for step_s in steps_s)
    assert place.cores[-1].saved.committed_tokens >= 0.95 * alone


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    way=ways,
    seconds=triggers,
    steps_s=st.lists(step_seconds, min_size=2, max_size=4),
    quorum=st.integers(1, 4),
    grace_s=st.sampled_from([None, 0.0, 0.05]),
    leaves_s=st.sampled_from([None, 0.3, 1.0]),
)
def test_with_a_quorum_rounds_go_on_and_what_is_accepted_is_committed(
    seed: int,
    way: tuple[int, int],
    seconds: float | None,
    steps_s: list[float],
    quorum: int,
    grace_s: float | None,
    leaves_s: float | None,
) -> None:
    rules = SETTINGS.model_copy(
        update={"quorum": quorum, "grace_seconds": grace_s, "overlap_steps": way[1]}
    )
    place = Place(seed, settings=rules)
    replicas = [Replica(f"r{n}", step_s, place, *way, seconds) for n, step_s in enumerate(steps_s)]
    place.run(leaves_s or 0.0)
    if leaves_s is not None:
        replicas.pop().die()
    interval_s = SYNC_EVERY * (0.03 + max(steps_s)) + (seconds or 0.0)
    place.run(place.now_s + 1.0 + 6 * interval_s)
    settled_s = place.now_s
    before = [list(replica.revisions) for replica in replicas]
    place.run(settled_s + 1.0 + 6 * interval_s)
    for fragment, rounds in enumerate(place.rounds):
        assert len(later(rounds, settled_s)) >= 4, "rounds go on"
        assert all(
            r.revisions[fragment] > b[fragment] for r, b in zip(replicas, before, strict=True)
        )
        core = place.cores[fragment]
        inside = sum(c.inner_steps for c in core._round.contributions()) if core._round else 0
        assert core.saved.committed_tokens + inside == place.accepted[fragment]


def test_with_a_quorum_the_slowest_costs_the_others_nothing() -> None:
    """One of four is four times slower; overlap hides 300 ms, and the network takes up to 60."""
    steps_s, run_s = [0.1, 0.1, 0.1, 0.4], 100.0
    rules = SETTINGS.model_copy(update={"quorum": 3, "overlap_steps": 3})
    place = Place(7, settings=rules)
    for number, step_s in enumerate(steps_s):
        Replica(f"r{number}", step_s, place, 1, 3)
    place.run(run_s)
    rounds = len(place.rounds[-1])
    alone = Place(7, settings=rules.model_copy(update={"quorum": None}))
    for number in range(3):
        Replica(f"r{number}", 0.1, alone, 1, 3)
    alone.run(run_s)
    assert rounds >= 0.95 * len(alone.rounds[-1])
