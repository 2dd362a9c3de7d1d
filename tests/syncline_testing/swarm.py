"""Replicas, a service of several fragments and a control plane, whose every misfortune is an input.

Leases, fragments, turns and cadence decide as they do in the product; between them lies a network
whose weather a test makes, link by link: how long a message takes, whether it comes twice or not at
all. Each of the three programs may stop at any instant. What must hold all the time is looked at by
``check``. What is not answered is sent again, and memberships are asked for again, as there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from syncline.core.timed import Publication
from syncline_control.core import leases
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import KEPT, Closing, Judgement, Kind, Saved, WholePush
from syncline_testing.lives import Exchange, Key, Living
from syncline_testing.pure import whole_push
from syncline_testing.ruled import LEASE_S, REVIEW_S, SERVICE, Ruled
from syncline_testing.simulated import FRAGMENTS, SYNC_EVERY, Replica
from syncline_testing.warming import Phase, of_phase

STEP_S, DEADLINE_S, AGAIN_S = 0.25, 8.0, 1.0

_BARRIER: Mapping[str, Any] = {
    "sync_every": SYNC_EVERY,
    "timeouts": {"lease": LEASE_S, "round_deadline": DEADLINE_S},
}
MODES: Mapping[str, Mapping[str, Any]] = {
    "barrier": _BARRIER,
    "quorum": {**_BARRIER, "quorum": 2, "late": {"age_max": 2}},
    "by time": {**_BARRIER, "sync_seconds": 1.0},
    "asynchronous": {**_BARRIER, "asynchronous": True},
}
"""Settings under which rounds close in other ways."""

Wait = tuple[Callable[[], bool], Callable[[], None]]
"""Whether there is what a pull waits for, and how to tell it."""


class Swarm(Ruled):
    """All of them, on one clock; every method is an input."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings)
        self.steps_s: dict[str, float] = {}
        """By name, how long an inner step takes, where that is not ``STEP_S``."""
        self.published = [{0: self.newest} for _ in self.cores]
        """By fragment, its revisions."""
        self.replicas: dict[str, Living] = {}
        """By name, the newest life of each."""
        self._stored: list[Saved] = [core.saved for core in self.cores]
        self._history: list[dict[int, Saved]] = [{saved.revision: saved} for saved in self._stored]
        self._phase = Phase()
        self._waits: list[list[Wait]] = [[] for _ in self.cores]
        self.serves, self.instance, self._torn = True, 0, False
        self.committed: list[dict[Key, int]] = [{} for _ in self.cores]
        """By fragment: the inner steps of each push that is in a revision."""
        self.counted: list[Counter[tuple[str, int]]] = [Counter() for _ in self.cores]
        """By fragment: those of each life."""
        self.closings: list[list[tuple[float, frozenset[str]]]] = [[] for _ in self.cores]
        """By fragment: when each round closed, and who is in it."""
        self._waits_from_s: list[float | None] = [None for _ in self.cores]
        """By fragment: when its round had its first timely push, or a pause ended in it."""
        self._answered: dict[tuple[int, str], tuple[tuple[int, int], Judgement]] = {}
        """By fragment and replica: what this very process of the service has told of which push."""
        self._pushed: list[set[tuple[str, int]]] = [set() for _ in self.cores]
        """By fragment: the lives that have pushed."""
        self._begin()
        self._review()
        self.adopt()

    # What befalls it.

    def register(self, name: str, *, beside: bool = False) -> None:
        """Somebody of that name asks for a lease; it trains as soon as the service knows it.

        ``beside``: another process goes on under it, until it hears that its lease is lost.
        """
        if not self.controls:
            return
        if name in self.replicas and not beside:
            self.replicas[name].stop()
        self._change(name, leases.grant(self._leases.get(name), self.now_s, LEASE_S))
        self._open(name, self._leases[name].incarnation)

    def stop_service(self) -> None:
        """Whatever is not committed is gone, and all that wait hear nothing."""
        self.serves, self._torn = False, False
        self._waits = [[] for _ in self.cores]
        self._waits_from_s = [None for _ in self.cores]
        self._answered.clear()

    def tear_next_commit(self) -> None:
        """The service stops when the next round closes, before that is on the disk."""
        self._torn = True

    def start_service(self) -> None:
        """On what is committed, with the membership that it heard last."""
        if not self.serves:
            self._begin()
            self.serves, self.instance = True, self.instance + 1
            self.adopt()

    def _begin(self) -> None:
        self.cores = self._phase.begun(self.settings, self._stored)

    def heal(self) -> None:
        """Nothing is lost or late from now on, and everything is there."""
        self.clear_up()
        self._torn = False
        self.start_control()
        self.start_service()
        self.pause(True)

    def runs_well(self, seconds: float) -> None:
        self.run(self.now_s + seconds)

    # What must hold.

    def check(self) -> None:
        """Nothing counts twice and nothing is lost; no round outlives its deadline."""
        for fragment, core in enumerate(self.cores):
            r = core._round
            waits_from_s = self._waits_from_s[fragment]
            # Which waits for those of others.
            is_offer = r is not None and r.kind is Kind.PARAMETERS
            if self.serves and r and not is_offer and core.running and waits_from_s is not None:
                over = self.now_s > waits_from_s + DEADLINE_S
                there = r.replicas if r.window is None else core.members
                assert not over or len(there) < self.settings.min_replicas, "it is over"
                waited_for = set(core.expected) - set(core.arrived)
                lives = {(name, core.members.get(name, 0)) for name in waited_for}
                assert lives <= self._pushed[fragment], "nobody waits for who has just come"
            for replica in self.replicas.values():
                if replica.alive:
                    replica.check(fragment)

    def _commit(self, fragment: int, closing: Closing) -> None:
        saved, before = closing.saved, self._stored[fragment]
        pushes = {(c.replica, c.incarnation, c.seq): c.inner_steps for c in saved.contributions}
        assert len(pushes) == len(saved.contributions)
        assert pushes.keys().isdisjoint(self.committed[fragment]), "applied twice"
        self.committed[fragment].update(pushes)
        self.closings[fragment].append((self.now_s, frozenset(name for name, _, _ in pushes)))
        if closing.kind is not Kind.PSEUDO_GRADIENT:
            self._phase.commit(fragment, closing, self._stored)
        self._stored[fragment], self._waits_from_s[fragment] = saved, None
        if closing.kind is Kind.GRADIENT:
            return
        assert saved.revision == before.revision + 1, "revisions grow by one"
        if closing.kind is Kind.PSEUDO_GRADIENT:
            of_all = saved.window.size if self.settings.asynchronous else 1
            oldest = self.settings.age_max * of_all + of_all - 1
            assert all(c.age <= oldest for c in saved.contributions)
            for (name, life, _), steps in pushes.items():
                self.counted[fragment][name, life] += steps
        published = Publication(saved.revision, self.now_s)
        self.published[fragment][saved.revision] = published
        if fragment == FRAGMENTS - 1:
            self.newest = published
        kept = self._history[fragment]
        kept[saved.revision] = saved
        kept.pop(saved.revision - KEPT, None)

    # What leased data adds.

    def _live(self, name: str, life: int) -> Living:
        return Living(name, life, self.steps_s.get(name, STEP_S), self)

    def _whole(self, replica: Living, fragment: int, push: WholePush) -> WholePush:
        """A push, with what is to be told of its data."""
        return push

    def _entered(self, push: WholePush, judged: Judgement) -> None:
        """It was judged, and is in a round."""

    # The service.

    def adopt(self) -> None:
        members, running, _ = self._said
        for fragment, core in enumerate(self.cores):
            r, expected, due_s = core._round, set(core.expected), core.look_at_s(self.now_s)
            ran = core.running  # else nothing was due
            if running and not core.running and self._waits_from_s[fragment] is not None:
                self._waits_from_s[fragment] = self.now_s
            core.adopt(self.now_s, members, self.settings, running)
            assert set(core.expected) <= expected, "nobody who joins is waited for"
            if r is not None and core._round is r and r.resumed_s is None and running and ran:
                assert core.look_at_s(self.now_s) == due_s, "nor do rounds last longer for it"
            self.close(fragment)
        if self._phase.has_moved(members) and self.serves:
            self.adopt()

    def _open(self, name: str, life: int) -> None:
        """A joiner asks until the service knows its lease, then pulls what is published."""
        if self._leases[name].incarnation != life or not self._leases[name].held:
            return
        if self.serves and self._said[0].get(name) == life:
            self.replicas[name] = self._live(name, life)
        else:
            self.after(REVIEW_S, lambda: self._open(name, life))

    def states(self, replica: Living) -> list[tuple[int, int, int]] | None:
        """(revision, gradient step, phase) of each fragment, as who holds a lease is told."""
        if not self.serves or self._said[0].get(replica.name) != replica.life:
            return None
        saved = [core.saved for core in self.cores]
        return [(one.revision, one.gradient_step, one.phase) for one in saved]

    def push(self, replica: Replica, fragment: int, steps: int) -> None:
        assert isinstance(replica, Living)
        base = replica.revisions[fragment]
        self.push_of(replica, fragment, steps, base=base, norm=steps**0.5)

    def push_of(self, replica: Living, fragment: int, steps: int = 1, **given: Any) -> None:
        life, seq = replica.life, replica.next_seq()
        of_all = {"inner_steps": steps, "tokens": steps, "last_step": steps}
        push = whole_push(replica.name, incarnation=life, seq=seq, **of_all, **given)
        push = self._whole(replica, fragment, push)
        replica.pushes[fragment] = push
        replica.exchanges[fragment] = Exchange(push)
        self.ask(replica, fragment, replica.exchanges[fragment])

    def ask(self, replica: Living, fragment: int, exchange: Exchange) -> None:
        """Push until that is judged, then pull the result; all anew where the service is."""
        if not replica.alive or exchange.is_over:
            return
        if exchange.judged is not None and exchange.instance != self.instance:
            exchange.judged = None
        self.ask_once(replica, fragment, exchange)
        self.after(AGAIN_S, lambda: self.ask(replica, fragment, exchange))

    def ask_once(self, replica: Living, fragment: int, exchange: Exchange) -> None:
        judged, instance = exchange.judged, self.instance
        act = self._judge if judged is None else self._pull

        def arrives() -> None:
            if self.instance == instance:  # with a process its connections are gone
                act(replica, fragment, exchange)

        self.over((replica.name, SERVICE), arrives)

    def _judge(self, replica: Living, fragment: int, exchange: Exchange) -> None:
        if not self.serves:
            return
        instance, judged = self.instance, self._judged(fragment, exchange.push)
        if judged.verdict == pb.VERDICT_FENCED:
            self.answer(replica, replica.stop)
        else:
            if judged.sets:
                self._phase.keep_offer(fragment, self.cores[fragment])
                self.adopt()
            assert self._said[0].get(replica.name) == replica.life, "it holds no lease"
            self._pushed[fragment].add((replica.name, replica.life))
            of_step = exchange.push.kind is Kind.GRADIENT and judged.verdict == pb.VERDICT_ACCEPTED
            assert not of_step or judged.result == exchange.push.gradient_step, "of another step"
            self._entered(exchange.push, judged)
            is_timely = judged.verdict == pb.VERDICT_ACCEPTED and not judged.counts_in
            if is_timely and not judged.sets and self._waits_from_s[fragment] is None:
                self._waits_from_s[fragment] = self.now_s
            self.answer(replica, lambda: replica.hear_verdict(fragment, exchange, judged, instance))
        self.close(fragment)

    def _judged(self, fragment: int, push: WholePush) -> Judgement:
        """What was told of this push already; else the core's word."""
        core, life = self.cores[fragment], (push.incarnation, push.seq)
        told = self._answered.get((fragment, push.replica))
        if told is not None and told[0] == life and core.members.get(push.replica) == life[0]:
            before = told[1].judged or told[1].verdict
            return replace(told[1], verdict=pb.VERDICT_DUPLICATE, judged=before, sets=False)
        judged = core.judge(self.now_s, push)
        self._answered[fragment, push.replica] = life, judged
        return judged

    def _pull(self, replica: Living, fragment: int, exchange: Exchange) -> None:
        if not self.serves or exchange.judged is None:
            return
        wanted, instance, core = exchange.judged.result, self.instance, self.cores[fragment]
        if exchange.push.kind is Kind.GRADIENT:
            self._phase.pull_mean(self, replica, fragment, exchange)
            return
        if exchange.push.kind is Kind.PARAMETERS:
            wanted = 1
        is_of_now = of_phase(core, exchange.push)

        def told() -> None:
            if not is_of_now():
                self.answer(replica, lambda: replica.hear_gone(fragment, exchange))
                return
            saved = self._history[fragment].get(wanted, self._stored[fragment])
            heard = lambda: replica.hear_result(fragment, exchange, saved, instance)  # noqa: E731
            self.answer(replica, heard)

        is_there = lambda: core.saved.revision >= wanted or not is_of_now()  # noqa: E731
        self.wait(fragment, is_there, told)

    def answer(self, replica: Living, heard: Callable[[], None]) -> None:
        self.over((SERVICE, replica.name), heard)

    def wait(self, fragment: int, is_there: Callable[[], bool], told: Callable[[], None]) -> None:
        """Tell what a pull waits for once it is there."""
        self._waits[fragment].append((is_there, told))
        self.close(fragment)

    def close(self, fragment: int) -> None:
        core = self.cores[fragment]
        while self.serves and (closed_by := core.due(self.now_s)) is not None:
            if self._torn:
                self.stop_service()
                return
            self._commit(fragment, core.close(closed_by))
            if core.is_deserted:
                self.adopt()
        if not self.serves:
            return
        waits = [(is_there(), is_there, told) for is_there, told in self._waits[fragment]]
        self._waits[fragment] = [(is_there, told) for now, is_there, told in waits if not now]
        for now, _, told in waits:
            if now:
                told()
        look_at_s = core.look_at_s(self.now_s)
        if look_at_s is not None:
            self.at(look_at_s, lambda: self.close(fragment))
