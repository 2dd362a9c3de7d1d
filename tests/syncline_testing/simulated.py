"""Replicas without models, and a service, on a simulated clock and a simulated network.

The service's real decisions and the worker's real rules meet here; the network's delays shuffle the
pushes of different fragments. No round has a deadline, so replicas that wait for one another in a
ring wait for ever. Pushes are due by inner steps, or by time.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from syncline.core.cadence import Cadence
from syncline.core.goal import goal
from syncline.core.timed import Instant, Publication, Timed
from syncline.core.turns import Turns
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import Kind, Saved
from syncline_testing.pure import whole_push

FRAGMENTS = 5
SYNC_EVERY = 4
SETTINGS = RunSettings.model_validate(
    {"sync_every": SYNC_EVERY, "timeouts": {"round_deadline": 86_400}}
)


@dataclass
class Place:
    """A clock, a network with delays, and one service with its fragments."""

    seed: int
    now_s: float = 0.0
    members: dict[str, int] = field(default_factory=dict)

    budget: int | None = None
    settings: RunSettings = SETTINGS

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._waiting: list[list[Callable[[], None]]] = [[] for _ in range(FRAGMENTS)]
        self.rounds: list[list[tuple[float, int]]] = [[] for _ in range(FRAGMENTS)]
        """By fragment: when each round closed, and how many had pushed."""
        self.brought: list[list[dict[str, int]]] = [[] for _ in range(FRAGMENTS)]
        """By fragment: the inner steps that each replica brought to each round."""
        self.newest = Publication(0, 0.0)
        """Of the last fragment."""
        self.accepted = [0] * FRAGMENTS
        """By fragment: inner steps of pushes that were accepted."""
        self.cores = [Fragment(self.settings) for _ in range(FRAGMENTS)]
        for core in self.cores:
            core.adopt(0.0, {"founder": 1}, self.settings, True)
            core.judge(0.0, whole_push("founder", kind=Kind.PARAMETERS, base=None))
            closed_by = core.due(0.0)
            assert closed_by is not None
            core.close(closed_by)

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self.at(self.now_s + seconds, act)

    def at(self, when_s: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), act))

    def send(self, act: Callable[[], None]) -> None:
        self.after(self.random.uniform(0.001, 0.03), act)

    def adopt(self) -> None:
        for fragment, core in enumerate(self.cores):
            core.adopt(self.now_s, self.members, self.settings, True)
            self.close(fragment)

    def close(self, fragment: int) -> None:
        core = self.cores[fragment]
        while (closed_by := core.due(self.now_s)) is not None:
            closing = core.close(closed_by)
            pushes = closing.saved.contributions
            self.rounds[fragment].append((self.now_s, len(pushes)))
            self.brought[fragment].append({push.replica: push.inner_steps for push in pushes})
            if fragment == FRAGMENTS - 1:
                self.newest = Publication(closing.saved.revision, self.now_s)
            waiting, self._waiting[fragment] = self._waiting[fragment], []
            for told in waiting:
                self.send(told)
        look_at_s = core.look_at_s(self.now_s)
        if look_at_s is not None:
            self.at(look_at_s, lambda: self.close(fragment))

    def push(self, replica: Replica, fragment: int, steps: int) -> None:
        core = self.cores[fragment]
        push = whole_push(
            replica.name,
            seq=replica.next_seq(),
            base=replica.revisions[fragment],
            norm=steps**0.5,  # as of steps in any direction: the detector finds all of them alike
            inner_steps=steps,
            tokens=steps,
            last_step=steps,
        )
        judgement = core.judge(self.now_s, push)
        stale = judgement.verdict == pb.VERDICT_STALE
        if judgement.verdict == pb.VERDICT_ACCEPTED:
            self.accepted[fragment] += steps
        if stale or judgement.counts_in:
            newest, published = core.saved, self.newest
            self.send(lambda: replica.heard(fragment, newest, published, late=stale))
        elif judgement.verdict != pb.VERDICT_FENCED:
            told = lambda: replica.heard(  # noqa: E731
                fragment, core.saved, self.newest, late=False
            )
            self._waiting[fragment].append(told)
        self.close(fragment)

    def run(self, until_s: float) -> None:
        while self.happens(until_s):
            pass

    def happens(self, until_s: float) -> bool:
        """Let the next event be; False, with the clock there, if none comes before that time."""
        if not self._events or self._events[0][0] >= until_s:
            self.now_s = until_s
            return False
        self.now_s, _, act = heapq.heappop(self._events)
        act()
        return True


@dataclass
class Flight:
    """A push under way, and what came of it: what is newest, and whether it was late for that."""

    steps: int
    lands_at: int
    outcome: tuple[Saved, Publication, bool] | None = None


class Replica:
    """What the worker does after each inner step, without a model."""

    def __init__(
        self,
        name: str,
        step_s: float,
        place: Place,
        groups: int,
        overlap: int,
        seconds: float | None = None,
    ) -> None:
        """``seconds``: pushes are due by time; None: by inner steps."""
        self.name, self.step_s, self.place = name, step_s, place
        self.draw = place.random
        """How long each of its steps takes."""
        self.revisions = [core.saved.revision for core in place.cores]
        self.turns = Turns(FRAGMENTS, groups, not place.settings.asynchronous)
        self.overlap = overlap
        self.cadence = Cadence(len(self.turns.groups), SYNC_EVERY)
        self.timed: Timed | None = None
        if seconds is not None:
            least = place.settings.min_round_steps
            self.timed = Timed(len(self.turns.groups), seconds, least, place.now_s)
            self.timed.start_over(place.now_s, place.newest)
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
        self.enter()
        self.begin()

    def next_seq(self) -> int:
        return next(self._seqs)

    def enter(self) -> None:
        self.place.members[self.name] = 1
        self.place.adopt()

    def die(self) -> None:
        self.alive = False
        del self.place.members[self.name]
        self.place.adopt()

    def begin(self) -> None:
        self.train()

    def train(self) -> None:
        self._training = True
        self.place.after(self.step_s * self.draw.uniform(0.8, 1.2), self.trained)

    def trained(self) -> None:
        self._training, self.step = False, self.step + 1
        self.steps = [steps + 1 for steps in self.steps]
        self.go_on()

    def heard(self, fragment: int, saved: Saved, published: Publication, *, late: bool) -> None:
        self._pending[fragment].outcome = saved, published, late
        self.go_on()

    @property
    def _instant(self) -> Instant:
        return Instant(self.place.now_s, self.steps[-1], self.step_s)

    def due(self) -> int:
        if self.timed is None:
            return max(0, self.cadence.due(self.step))
        before_last = partial(self.turns.before_last, self.revisions, self._pending)
        return self.timed.to_push(self._instant, before_last)

    def make_way(self, due: int) -> None:
        if self.timed is not None:
            for fragment in self.turns.in_the_way(self.revisions, self._pending, due):
                self._pending[fragment].lands_at = self.step

    def pushed(self, chosen: list[list[int]], due: int) -> None:
        if self.timed is None:
            self.cadence.pushed(min(len(chosen), due), self.step)
            return
        count, after_last = self.turns.of_interval(chosen, self.revisions)
        self.timed.pushed(min(due, count), self._instant, after_last)

    def go_on(self) -> None:
        """Merge, push, and train on, unless something must be waited for."""
        if self._training or not self.alive:
            return
        if self._decided < self.step:
            due = self.due()
            if due or self._owed or self.goal is not None:
                self.make_way(due)
                if not self.merge():
                    return
                if self.ends():
                    return
                if self.timed is not None:  # an interval may have begun with what was merged
                    due = min(due, self.due())
                owed, self._owed = self._owed, 0
                self.pushed(self.push(due + owed), due)
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
        saved, published, late = flight.outcome
        self.revisions[fragment] = saved.revision
        self.turns.landed(fragment)
        if fragment == FRAGMENTS - 1:
            self.goal = self.goal_by(saved)
            if self.timed is not None:
                counted = (c for c in saved.contributions if c.verdict == pb.VERDICT_ACCEPTED)
                at_s = published.at_s
                self.timed.see(Publication.of(published.revision, at_s, counted, self.name))
        if late:
            self.steps[fragment] += flight.steps
            is_whole = self.turns.came_late(fragment)
            self._owed += is_whole and self.timed is None

    def goal_by(self, last: Saved) -> int | None:
        """What a revision of the last fragment tells."""
        of_round = sum(c.tokens for c in last.contributions)
        groups = len(self.turns.groups)
        return goal(last.revision, last.committed_tokens, of_round, self.place.budget, groups)

    def push(self, count: int) -> list[list[int]]:
        end = self.goal
        ready = [
            f
            for f in range(FRAGMENTS)
            if self.steps[f] and f not in self._pending and (end is None or self.revisions[f] < end)
        ]
        count = count if end is None else len(self.turns.groups)
        chosen = self.turns.following(self.revisions, self._pending, ready, count)
        self.push_all(itertools.chain(*chosen))
        return chosen

    def push_all(self, fragments: Iterable[int]) -> None:
        for fragment in fragments:
            steps, self.steps[fragment] = self.steps[fragment], 0
            self._pending[fragment] = Flight(steps, self.step + self.overlap)
            self.turns.pushed([fragment])
            self.place.send(lambda f=fragment, n=steps: self.place.push(self, f, n))
