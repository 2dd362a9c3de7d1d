"""Every group is pushed once in each interval, and replicas never wait for one another in a ring."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.core.cadence import Cadence, behind

GROUPS, EVERY = st.integers(1, 12), st.integers(1, 40)


@given(GROUPS, EVERY, st.integers(0, 1000))
def test_each_group_comes_once_in_each_interval(groups: int, every: int, start: int) -> None:
    cadence, counts = Cadence(groups, every, start), list[int]()
    for step in range(start + 1, start + 3 * every + 1):
        counts.append(cadence.due(step))
        cadence.pushed(step)
    assert all(sum(counts[i : i + every]) == groups for i in range(0, 3 * every, every))
    assert max(counts) <= -(-groups // every)


@given(GROUPS, EVERY, EVERY, st.integers(0, 200))
def test_another_interval_counts_from_the_last_push(
    groups: int, every: int, then: int, steps: int
) -> None:
    cadence, last = Cadence(groups, every), 0
    for step in range(1, steps + 1):
        if cadence.due(step):
            cadence.pushed(step)
            last = step
    cadence.adopt(then, steps)
    first = next(step for step in range(steps, steps + 2 * then + 1) if cadence.due(step))
    assert first <= max(steps, last + -(-then // groups))


def test_one_group_is_due_at_the_end_of_the_interval() -> None:
    cadence = Cadence(1, 4)
    assert [cadence.due(step) for step in range(6)] == [0, 0, 0, 0, 1, 1]
    cadence.pushed(4)
    assert [cadence.due(step) for step in range(4, 9)] == [0, 0, 0, 0, 1]


def test_the_group_that_is_furthest_behind_is_next_and_the_last_fragments_comes_last() -> None:
    assert behind([1, 1, 1, 1, 1], [], 2) == [1, 3]
    assert behind([1, 2, 1, 2, 1], [], 2) == [0, 2, 4]
    assert behind([1, 1, 1, 1, 1], [1, 3], 2) == [0, 2, 4]
    assert behind([3, 3, 3], [], 10, 2) == [0, 1]
    assert behind([3, 2, 3], [], 10) == [1]
    assert behind([1, 1, 1], [], 1) == [0, 1, 2]


@dataclass
class Member:
    """A replica that does nothing but count steps, push, and wait where it must."""

    fragments: int
    groups: int
    every: int
    overlap: int
    revisions: list[int]
    step: int = 0
    pending: dict[int, int] = field(default_factory=dict[int, int])
    """By fragment, the step at which its result is waited for."""

    def __post_init__(self) -> None:
        self.cadence = Cadence(min(self.groups, self.fragments), self.every)

    def may_go_on(self, published: list[int]) -> bool:
        """Take what is there; False where it must wait."""
        for fragment, lands_at in list(self.pending.items()):
            if lands_at <= self.step:
                if published[fragment] == self.revisions[fragment]:
                    return False
                del self.pending[fragment]
                self.revisions[fragment] = published[fragment]
        return True

    def trains(self) -> list[int]:
        """One inner step; what it pushes then."""
        self.step += 1
        count = self.cadence.due(self.step)
        if not count:
            return []
        chosen = behind(self.revisions, self.pending, self.groups, count)
        if set(chosen) & self.pending.keys():
            return []  # lands now, and is pushed before the next step
        self.cadence.pushed(self.step)
        self.pending |= dict.fromkeys(chosen, self.step + self.overlap)
        return chosen


@settings(max_examples=200)
@given(
    fragments=st.integers(1, 7),
    groups=st.integers(1, 9),
    every=st.integers(1, 9),
    overlap=st.integers(0, 9),
    joins=st.lists(st.integers(0, 60), max_size=3),
    seed=st.integers(0, 2**31),
)
def test_replicas_of_any_speed_that_come_at_any_time_never_wait_in_a_ring(
    fragments: int, groups: int, every: int, overlap: int, joins: list[int], seed: int
) -> None:
    """A round closes with everybody who was in one of this fragment before, whoever comes late."""
    dice, published = Random(seed), [0] * fragments
    overlap = min(overlap, every)
    expected: list[set[int]] = [{0} for _ in range(fragments)]
    arrived: list[set[int]] = [set() for _ in range(fragments)]
    members = [Member(fragments, groups, every, overlap, [0] * fragments)]
    for turn in range(600):
        if turn in joins:
            members.append(Member(fragments, groups, every, overlap, list(published)))
        free = [i for i, one in enumerate(members) if one.may_go_on(published)]
        assert free, "everybody waits"
        who = dice.choice(free)
        for fragment in members[who].trains():
            if members[who].revisions[fragment] < published[fragment]:
                continue  # late: it takes what is there, and its next push is in time
            arrived[fragment].add(who)
            if arrived[fragment] >= expected[fragment]:
                published[fragment] += 1
                expected[fragment] |= arrived[fragment]
                arrived[fragment] = set()
    assert min(published) > 0 or every * len(members) > 100
