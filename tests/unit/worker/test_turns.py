"""Replicas of any speed push in one order, and come into step: a joiner is soon in every round.

The service's real decisions and the worker's real rules meet on a simulated clock and a simulated
network, whose delays shuffle the pushes of different fragments. No round here has a deadline, so
replicas that wait for one another in a ring wait for ever.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from syncline.core.cadence import Cadence
from syncline.core.goal import goal
from syncline.core.turns import Turns
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import Kind, Saved
from syncline_testing.pure import whole_push

FRAGMENTS = 5
SYNC_EVERY = 4
SETTINGS = RunSettings(sync_every=SYNC_EVERY)


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


def test_of_a_group_those_that_are_ahead_sit_one_push_out() -> None:
    assert following([1, 2, 1], set(), 1, 1) == [[0, 2]]


@dataclass
class Place:
    """A clock, a network with delays, and one service with its fragments."""

    seed: int
    now_s: float = 0.0
    members: dict[str, int] = field(default_factory=dict)

    budget: int | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._waiting: list[list[Callable[[], None]]] = [[] for _ in range(FRAGMENTS)]
        self.rounds: list[list[tuple[float, int]]] = [[] for _ in range(FRAGMENTS)]
        """By fragment: when each round closed, and how many had pushed."""
        self.cores = [Fragment(SETTINGS) for _ in range(FRAGMENTS)]
        for core in self.cores:
            core.adopt(0.0, {"founder": 1}, SETTINGS, True)
            core.judge(0.0, whole_push("founder", kind=Kind.PARAMETERS, base=None))
            closed_by = core.due(0.0)
            assert closed_by is not None
            core.close(closed_by)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._order), act))

    def send(self, act: Callable[[], None]) -> None:
        self.after(self.random.uniform(0.001, 0.03), act)

    def adopt(self) -> None:
        for fragment, core in enumerate(self.cores):
            core.adopt(self.now_s, self.members, SETTINGS, True)
            self.close(fragment)

    def close(self, fragment: int) -> None:
        core = self.cores[fragment]
        while (closed_by := core.due(self.now_s)) is not None:
            closing = core.close(closed_by)
            self.rounds[fragment].append((self.now_s, len(closing.saved.contributions)))
            waiting, self._waiting[fragment] = self._waiting[fragment], []
            for told in waiting:
                self.send(told)

    def push(self, replica: Replica, fragment: int, steps: int) -> None:
        core = self.cores[fragment]
        push = whole_push(
            replica.name,
            seq=replica.next_seq(),
            base=replica.revisions[fragment],
            inner_steps=steps,
            tokens=steps,
            last_step=steps,
        )
        verdict = core.judge(self.now_s, push).verdict
        if verdict == pb.VERDICT_STALE:
            newest = core.saved
            self.send(lambda: replica.heard(fragment, newest, late=True))
        elif verdict != pb.VERDICT_FENCED:
            told = lambda: replica.heard(fragment, core.saved, late=False)  # noqa: E731
            self._waiting[fragment].append(told)
        self.close(fragment)

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] < until_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        self.now_s = until_s


@dataclass
class Flight:
    """A push under way, and what came of it: what is newest, and whether it was late for that."""

    steps: int
    lands_at: int
    outcome: tuple[Saved, bool] | None = None


class Replica:
    """What the worker does after each inner step, without a model."""

    def __init__(self, name: str, step_s: float, place: Place, groups: int, overlap: int) -> None:
        self.name, self.step_s, self.place = name, step_s, place
        self.revisions = [core.saved.revision for core in place.cores]
        self.turns, self.overlap = Turns(FRAGMENTS, groups), overlap
        self.cadence = Cadence(len(self.turns.groups), SYNC_EVERY)
        self.step, self.steps = 0, [0] * FRAGMENTS
        """The inner step; and by fragment, how many no push holds."""
        self._seqs = itertools.count(1)
        self._pending: dict[int, Flight] = {}
        self._training, self._owed = False, 0
        self._decided = 0
        """The step after which it was last seen to what is due."""
        self.goal = self.goal_by(place.cores[-1].saved)
        """With which revision of all fragments it is done, once it knows."""
        self.is_done = False
        self.alive = True
        place.members[name] = 1
        place.adopt()
        self.train()

    def next_seq(self) -> int:
        return next(self._seqs)

    def die(self) -> None:
        self.alive = False
        del self.place.members[self.name]
        self.place.adopt()

    def train(self) -> None:
        self._training = True
        self.place.after(self.step_s * self.place.random.uniform(0.8, 1.2), self.trained)

    def trained(self) -> None:
        self._training, self.step = False, self.step + 1
        self.steps = [steps + 1 for steps in self.steps]
        self.go_on()

    def heard(self, fragment: int, saved: Saved, *, late: bool) -> None:
        self._pending[fragment].outcome = saved, late
        self.go_on()

    def go_on(self) -> None:
        """Merge, push, and train on, unless something must be waited for."""
        if self._training or not self.alive:
            return
        if self._decided < self.step:
            due = max(0, self.cadence.due(self.step))
            if due or self._owed or self.goal is not None:
                if not self.merge():
                    return
                if self.ends():
                    return
                owed, self._owed = self._owed, 0
                self.cadence.pushed(min(self.push(due + owed), due), self.step)
            self._decided = self.step
        if self.merge() and not self.ends():
            self.train()

    def ends(self) -> bool:
        """Leave with the run's last revisions, if these are there or under way."""
        if self.goal is None or self.is_done:
            return self.is_done
        for flight in self._pending.values():
            flight.lands_at = self.step
        if not self.merge():
            return True  # comes back when it has heard more
        if min(self.revisions) >= self.goal:
            self.is_done = True
            self.die()
        return self.is_done

    def merge(self) -> bool:
        """Take in what has landed; False where some of it has not come."""
        while landed := [f for f, flight in self._pending.items() if flight.lands_at <= self.step]:
            if any(self._pending[fragment].outcome is None for fragment in landed):
                return False
            for fragment in landed:
                self.take(fragment)
        return True

    def take(self, fragment: int) -> None:
        flight = self._pending.pop(fragment)
        assert flight.outcome is not None
        saved, late = flight.outcome
        self.revisions[fragment] = saved.revision
        if fragment == FRAGMENTS - 1:
            self.goal = self.goal_by(saved)
        if late:
            self.steps[fragment] += flight.steps
            self._owed += self.turns.came_late(fragment)

    def goal_by(self, last: Saved) -> int | None:
        """What a revision of the last fragment tells."""
        of_round = sum(c.tokens for c in last.contributions)
        groups = len(self.turns.groups)
        return goal(last.revision, last.committed_tokens, of_round, self.place.budget, groups)

    def push(self, count: int) -> int:
        end = self.goal
        ready = [
            f
            for f in range(FRAGMENTS)
            if self.steps[f] and f not in self._pending and (end is None or self.revisions[f] < end)
        ]
        everything = end is not None
        chosen = self.turns.following(
            self.revisions, self._pending, ready, None if everything else count
        )
        for fragment in itertools.chain(*chosen):
            steps, self.steps[fragment] = self.steps[fragment], 0
            self._pending[fragment] = Flight(steps, self.step + self.overlap)
            self.turns.pushed([fragment])
            self.place.send(lambda f=fragment, n=steps: self.place.push(self, f, n))
        return len(chosen)


step_seconds = st.sampled_from([0.0002, 0.002, 0.01, 0.1])
ways = st.tuples(st.integers(1, FRAGMENTS + 1), st.integers(0, SYNC_EVERY))
"""Groups, and steps of overlap."""


def later(rounds: Iterable[tuple[float, int]], than_s: float) -> list[int]:
    return [pushes for closed_s, pushes in rounds if closed_s > than_s]


@settings(max_examples=150, deadline=None)
@example(seed=652641, way=(2, 4), first=0.0002, others=[0.002, 0.1])
@given(
    seed=st.integers(0, 10**6),
    way=ways,
    first=step_seconds,
    others=st.lists(step_seconds, max_size=2),
)
def test_joiners_are_soon_in_every_round_of_every_fragment(
    seed: int, way: tuple[int, int], first: float, others: list[float]
) -> None:
    place = Place(seed)
    replicas = [Replica("first", first, place, *way)]
    for number, step_s in enumerate(others):
        place.run(place.now_s + place.random.uniform(0.5, 1.5))
        replicas.append(Replica(f"joiner-{number}", step_s, place, *way))
    interval_s = SYNC_EVERY * (0.03 + max([first, *others]))
    place.run(place.now_s + 1.0 + 6 * interval_s)
    settled_s = place.now_s
    place.run(settled_s + 1.0 + 6 * interval_s)
    for rounds in place.rounds:
        assert len(later(rounds, settled_s)) >= 4, "rounds go on"
        assert set(later(rounds, settled_s)) == {len(replicas)}, "everybody is in every one of them"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), way=ways, step_s=step_seconds, end_s=st.floats(0.6, 2.0))
def test_a_loss_at_any_instant_stops_nobody(
    seed: int, way: tuple[int, int], step_s: float, end_s: float
) -> None:
    place = Place(seed)
    survivor = Replica("survivor", 0.01, place, *way)
    place.run(0.5)
    lost = Replica("lost", step_s, place, *way)
    place.run(end_s)
    lost.die()
    place.run(end_s + 2.0)
    for fragment, rounds in enumerate(place.rounds):
        assert len(later(rounds, end_s + 0.7)) >= 4
        assert set(later(rounds, end_s + 0.7)) == {1}
        assert survivor.revisions[fragment] >= place.cores[fragment].saved.revision - 1


@settings(max_examples=200, deadline=None)
@example(seed=1, way=(3, 2), first=0.01, others=[0.01], budget=60, joins_s=0.05)
@given(
    seed=st.integers(0, 10**6),
    way=ways,
    first=step_seconds,
    others=st.lists(step_seconds, max_size=2),
    budget=st.integers(1, 150),
    joins_s=st.floats(0.0, 2.0),
)
def test_everybody_ends_with_the_revisions_that_are_published(
    seed: int, way: tuple[int, int], first: float, others: list[float], budget: int, joins_s: float
) -> None:
    place = Place(seed, budget=budget)
    replicas = [Replica("first", first, place, *way)]
    for number, step_s in enumerate(others):
        place.run(place.now_s + place.random.uniform(0.0, joins_s))
        replicas.append(Replica(f"joiner-{number}", step_s, place, *way))
    place.run(place.now_s + 200.0)
    ends = [core.saved.revision for core in place.cores]
    assert all(replica.is_done for replica in replicas)
    assert all(replica.revisions == ends for replica in replicas)
    assert len(set(ends)) == 1 and place.cores[-1].saved.committed_tokens >= budget
