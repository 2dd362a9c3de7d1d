"""Replicas of any speed come into step: a joiner is soon in every fragment's rounds, and stays.

The service's real decisions and the worker's real rule meet on a simulated clock and a simulated
network, whose delays shuffle the pushes of different fragments.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.core.plan import in_step
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import Kind
from syncline_testing.pure import whole_push

FRAGMENTS = 4
SYNC_EVERY = 4
SETTINGS = RunSettings(sync_every=SYNC_EVERY)


@dataclass
class Place:
    """A clock, a network with delays, and one service with its fragments."""

    seed: int
    now_s: float = 0.0
    members: dict[str, int] = field(default_factory=dict)

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

    def push(self, replica: Replica, fragment: int) -> None:
        core = self.cores[fragment]
        push = whole_push(
            replica.name,
            seq=replica.next_seq(),
            base=replica.revisions[fragment],
            inner_steps=replica.steps[fragment],
            last_step=replica.steps[fragment],
        )
        verdict = core.judge(self.now_s, push).verdict
        if verdict == pb.VERDICT_STALE:
            self.send(lambda: replica.heard(fragment, late=True))
        elif verdict != pb.VERDICT_FENCED:
            self._waiting[fragment].append(lambda: replica.heard(fragment, late=False))
        self.close(fragment)

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] < until_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        self.now_s = until_s


class Replica:
    """What the worker does at a boundary, without a model."""

    def __init__(self, name: str, step_s: float, place: Place) -> None:
        self.name, self.step_s, self.place = name, step_s, place
        self.revisions = [core.saved.revision for core in place.cores]
        self.steps = [0] * FRAGMENTS
        self._seqs = itertools.count(1)
        self._pending: set[int] = set()
        self._late: list[int] = []
        self._in_time = False
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
        if self.alive:
            seconds = SYNC_EVERY * self.step_s * self.place.random.uniform(0.8, 1.2)
            self.place.after(seconds, self.sync)

    def sync(self) -> None:
        self.steps = [steps + SYNC_EVERY for steps in self.steps]
        self._in_time = False
        self.push(in_step(self.revisions, range(FRAGMENTS)))

    def push(self, fragments: list[int]) -> None:
        self._pending, self._late = set(fragments), []
        for fragment in fragments if self.alive else []:
            self.place.send(lambda fragment=fragment: self.place.push(self, fragment))

    def heard(self, fragment: int, *, late: bool) -> None:
        self.revisions[fragment] = self.place.cores[fragment].saved.revision
        self._pending.discard(fragment)
        if late:
            self._late.append(fragment)
        else:
            self._in_time = True
            self.steps[fragment] = 0
        if self._pending:
            return
        again: list[int] = []
        if self._late and not self._in_time:
            ready = [f for f in range(FRAGMENTS) if self.steps[f]]
            again = [f for f in in_step(self.revisions, ready) if f in self._late]
        self.push(again) if again else self.train()


step_seconds = st.sampled_from([0.0002, 0.002, 0.01, 0.1])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), first=step_seconds, others=st.lists(step_seconds, max_size=2))
def test_joiners_are_soon_in_every_round_of_every_fragment(
    seed: int, first: float, others: list[float]
) -> None:
    place = Place(seed)
    replicas = [Replica("first", first, place)]
    for number, step_s in enumerate(others):
        place.run(place.now_s + place.random.uniform(0.5, 1.5))
        replicas.append(Replica(f"joiner-{number}", step_s, place))
    interval_s = SYNC_EVERY * max([first, *others])
    place.run(place.now_s + 0.5 + 5 * interval_s)
    settled_s = place.now_s
    place.run(settled_s + 0.5 + 5 * interval_s)
    for rounds in place.rounds:
        later = [pushes for closed_s, pushes in rounds if closed_s > settled_s]
        assert len(later) >= 4, "rounds go on"
        assert set(later) == {len(replicas)}, "everybody is in every one of them"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), step_s=step_seconds, end_s=st.floats(0.6, 2.0))
def test_a_loss_at_any_instant_stops_nobody(seed: int, step_s: float, end_s: float) -> None:
    place = Place(seed)
    survivor = Replica("survivor", 0.01, place)
    place.run(0.5)
    lost = Replica("lost", step_s, place)
    place.run(end_s)
    lost.die()
    place.run(end_s + 1.5)
    for fragment, rounds in enumerate(place.rounds):
        later = [pushes for closed_s, pushes in rounds if closed_s > end_s + 0.5]
        assert len(later) >= 4 and set(later) == {1}
        assert survivor.revisions[fragment] >= place.cores[fragment].saved.revision - 1
