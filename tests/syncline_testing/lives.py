"""One life of a replica in a swarm: what it has pushed, what it has heard, and where each step is.

A push on its way is what the worker's exchange is: sent until it is judged, its result pulled until
it comes, and both anew where the service may have forgotten it. It never believes that a message
has come because it was sent.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import Judgement, Kind, Saved, WholePush
from syncline_testing.simulated import FRAGMENTS, Flight, Replica
from syncline_testing.warming import Warming

if TYPE_CHECKING:
    from syncline_testing.swarm import Swarm

LEAVE_S = 8.0
"""How long who leaves waits for what it pushed last."""

Key = tuple[str, int, int]
"""A push of one fragment: replica, incarnation, seq."""


def key_of(push: WholePush) -> Key:
    return push.replica, push.incarnation, push.seq


def _is_in(push: WholePush, saved: Saved) -> bool:
    return key_of(push) in ((c.replica, c.incarnation, c.seq) for c in saved.contributions)


@dataclass(eq=False, slots=True)
class Exchange:
    """A push on its way to its result."""

    push: WholePush
    judged: Judgement | None = None
    instance: int = -1
    """Of the service that has judged it."""
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Late:
    """A push that counts in a revision to come, by the word of that service."""

    push: WholePush
    counts_in: int
    instance: int


class Living(Replica):
    """One life of a replica: it trains until it is told to stop, or has left."""

    place: Swarm

    def __init__(self, name: str, life: int, step_s: float, swarm: Swarm) -> None:
        self.life = life
        self.pushes: dict[int, WholePush] = {}
        """By fragment: the last push."""
        self.exchanges: dict[int, Exchange] = {}
        self.late: dict[int, Late] = {}
        self.lost: Counter[int] = Counter()
        """By fragment: inner steps of late pushes that a crash took, and that were too old then."""
        self._leaves = False
        self._again: dict[int, Exchange] = {}
        """By fragment: the late push that is sent once more."""
        rules = swarm.settings
        self._warming = Warming(self, swarm) if rules.warmup_steps else None
        way = rules.fragment_groups, rules.overlap_steps, rules.sync_seconds
        super().__init__(name, step_s, swarm, *way)

    def enter(self) -> None:
        self.draw = random.Random(f"{self.name} {self.life}")  # whatever befalls the others
        self.place.beat(self)

    def begin(self) -> None:
        if self._warming is None:
            self.train()
        else:
            self._warming.enter()

    def begin_at(self, revisions: list[int]) -> None:
        """Train on from what is published."""
        self.revisions = revisions
        if self.timed is not None:
            self.timed.start_over(self.place.now_s, self.place.newest)
        self.train()

    @property
    def is_warming(self) -> bool:
        return self._warming is not None and self._warming.is_on

    def trained(self) -> None:
        if self._warming is None or not self._warming.is_on:
            super().trained()
        elif self.alive:
            self._training = False
            self._warming.trained()

    def offer(self) -> None:
        """The synchronous phase is over: whoever is first sets revision 1."""
        assert self._warming is not None
        for fragment in range(FRAGMENTS):
            self._pending[fragment] = Flight(0, self.step)
            phase = self._warming.phases[fragment]
            self.place.push_of(self, fragment, 0, kind=Kind.PARAMETERS, base=0, phase=phase)

    def forget_offers(self) -> None:
        """They set nothing: the parameters are to be had anew."""
        self._pending.clear()

    def tell_again(self) -> None:
        """What was pushed last counts nowhere, or not everywhere."""

    def stop(self) -> None:
        """Killed, or told that its lease is lost: it is the same to everybody else."""
        self.alive = False

    def leave(self) -> None:
        """Push what it has and go, once that is merged or ``LEAVE_S`` have passed."""
        if self.alive and not self._leaves:
            self._leaves = True
            self.place.after(LEAVE_S, self._go)
            if self.is_warming:
                self._go()  # what it has pushed is in, and there is nothing else
            else:
                self.go_on()

    def go_on(self) -> None:
        if not self._leaves or self._training or not self.alive:
            super().go_on()
            return
        for flight in self._pending.values():
            flight.lands_at = self.step
        if self.merge():
            self._push_the_rest()
            if not self._pending:
                self._go()

    def _push_the_rest(self) -> None:
        ready = [f for f in range(FRAGMENTS) if self.steps[f]]
        for group in self.turns.following(self.revisions, (), ready, None):
            self.push_all(group)

    def _go(self) -> None:
        if self.alive:
            self.place.release(self)
            self.stop()

    def hear_verdict(
        self, fragment: int, exchange: Exchange, judged: Judgement, instance: int
    ) -> None:
        if not self.alive or exchange.is_over or exchange.judged is not None:
            return
        exchange.judged, exchange.instance = judged, instance
        late = self.late.get(fragment)
        if late is not None and late.push is exchange.push:
            self._judged_again(fragment, exchange, late)
        else:
            self.place.ask_once(self, fragment, exchange)

    def hear_mean(
        self, fragment: int, exchange: Exchange, mean: Saved | None, instance: int
    ) -> None:
        """The mean gradient of a step; None: it is not to be had any more."""
        judged = exchange.judged
        if not self.alive or exchange.is_over or judged is None:
            return
        may_miss = instance != exchange.instance and judged.verdict == pb.VERDICT_ACCEPTED
        if mean is not None and may_miss and not _is_in(exchange.push, mean):
            exchange.judged = None
            self.place.ask_once(self, fragment, exchange)
            return
        exchange.is_over = True
        if mean is not None and pb.VERDICT_STALE in (judged.verdict, judged.judged):
            self.lose(fragment, exchange.push)
        assert self._warming is not None
        self._warming.hear(fragment, mean)

    def hear_gone(self, fragment: int, exchange: Exchange) -> None:
        """What it has offered is of a phase that nobody else is in any more."""
        if not self.alive or exchange.is_over:
            return
        exchange.is_over = True
        assert self._warming is not None
        self._warming.hear_gone(fragment)

    def hear_result(self, fragment: int, exchange: Exchange, saved: Saved, instance: int) -> None:
        judged = exchange.judged
        if not self.alive or exchange.is_over or judged is None:
            return
        late = self.late.get(fragment)
        if late is not None and late.instance == instance and saved.revision >= late.counts_in:
            del self.late[fragment]
        elif late is not None and late.instance != instance:
            if fragment not in self._again:
                self._again[fragment] = Exchange(late.push)
                self.place.ask(self, fragment, self._again[fragment])
            return
        is_late = pb.VERDICT_STALE in (judged.verdict, judged.judged)
        is_late = is_late and exchange.push.kind is Kind.PSEUDO_GRADIENT
        counts_later = judged.counts_in > judged.result
        may_miss = instance != exchange.instance and not (is_late or counts_later)
        if may_miss and not _is_in(exchange.push, saved):  # forgotten between the two
            exchange.judged = None
            self.place.ask_once(self, fragment, exchange)
            return
        exchange.is_over = True
        if counts_later:
            self._drop(fragment)
            self.late[fragment] = Late(exchange.push, judged.counts_in, exchange.instance)
        published = self.place.published[fragment][saved.revision]
        self.heard(fragment, saved, published, late=is_late)

    def _judged_again(self, fragment: int, exchange: Exchange, late: Late) -> None:
        """A late push that may have been forgotten is known, taken once more, or too late."""
        judged = exchange.judged
        assert judged is not None
        exchange.is_over = True
        self._again.pop(fragment)
        if judged.counts_in > judged.result:
            self.late[fragment] = Late(late.push, judged.counts_in, exchange.instance)
        else:
            self._drop(fragment)

    def _drop(self, fragment: int) -> None:
        """A late push is kept no longer: it is committed, or never will be."""
        late = self.late.pop(fragment, None)
        if late is not None and key_of(late.push) not in self.place.committed[fragment]:
            self.lost[fragment] += late.push.inner_steps
            self.lose(fragment, late.push)

    def lose(self, fragment: int, push: WholePush) -> None:
        """What a push held is in no round, and never will be."""

    def check(self, fragment: int) -> None:
        """Each inner step is in one place."""
        committed = self.place.committed[fragment]
        mine = self.place.counted[fragment][self.name, self.life]
        pushes = [self.pushes[fragment]] if fragment in self._pending else []
        pushes += [self.late[fragment].push] if fragment in self.late else []
        held = {key_of(push): push.inner_steps for push in pushes}
        under_way = sum(n for key, n in held.items() if key not in committed)
        found = mine + under_way + self.steps[fragment] + self.lost[fragment]
        assert found == self.step, f"of {self.step} inner steps {found} are somewhere"
