"""A fragment's push and pull in the background, and what came of them.

Each exchange has a thread of its own, so a fragment that waits for its round holds up no other;
a few send at a time, in the order in which they were begun (line). Knows the service's rules for
sending again, and nothing of models, ranks or hooks: a ``Push`` goes in, an ``Outcome`` comes out.

How long an exchange may take: a service that does not answer is asked for ``give_up_s``; one that
answers but does not publish is waited for ``2 round_deadline_s + give_up_s``, not counting the
time in which the run is paused. Then the exchange ends with Unreachable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

import structlog

from syncline.background import in_background
from syncline.core.agreement import Answer
from syncline.late import LatePushes
from syncline.layout import RankShard
from syncline.line import Place, PushLine
from syncline.link import Link
from syncline.patience import PASSING, Pauses, RoundPatience
from syncline.pulled import Pulled
from syncline.puller import AGAIN_S, Puller
from syncline.push import (
    Identity,
    Outcome,
    Push,
    Wanted,
    header_of,
    is_forgotten,
    is_settled,
    loss_by,
    outcome_of,
    verdict_of,
    wanted_by,
)
from syncline.scratch import Scratch
from syncline.services import Services
from syncline.stalled import Stalled
from syncline_proto.codec import Float32
from syncline_proto.errors import (
    EpochChanged,
    LeaseLost,
    RevisionGone,
    SynclineError,
    bare,
)
from syncline_proto.layout import Layout
from syncline_proto.ranges import NOTHING, Ranges, joined
from syncline_proto.settings import TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb

PUSHES_MAX = 4
"""Pushes of one rank that send at a time."""

IDLE_SHARE = 0.05
"""Of ``call_s``: when nothing has been sent for so long, those who send wait for room."""

NEW_SERVICE = "the sync service has started anew"

CLOSE_S = 5.0
"""How long the end of all exchanges' threads is waited for, when they are told to end."""

Value = TypeVar("Value")

log = structlog.get_logger()


class Exchange:
    """This rank's exchanges with the sync services that own the run's fragments.

    Invariants:
        - at most one push of a fragment is under way;
        - ``seq`` of a fragment grows by one with each push, and never within one.
    """

    def __init__(
        self,
        identity: Identity,
        layout: Layout,
        shards: tuple[RankShard, ...],
        links: dict[int, Link],
        epochs: dict[int, int],
        seqs: list[int],
        timeouts: TimeoutSettings,
        scratch: Scratch,
    ) -> None:
        """``links`` gives the service that owns each fragment, ``epochs`` that service's epoch.

        ``seqs`` are the largest that each fragment's service knows of this life already.
        What is pulled is from ``scratch``.
        """
        self.pauses = Pauses()
        """While the run stands still, waiting for a round costs no patience.

        Told by the training thread, read by exchanges.
        """
        self._identity = identity
        self._boxes = [[piece.box.to_proto() for piece in shard.sent] for shard in shards]
        self._seqs = list(seqs)
        self._judged_pushes: set[int] = set()
        """Fragments whose newest push was judged: what is missing is the result."""
        self._late = LatePushes(scratch)
        self._line = PushLine(PUSHES_MAX, IDLE_SHARE * timeouts.call_s)
        self._stop = threading.Event()
        self._services = Services(identity, layout, links, epochs, timeouts, self._stop)
        self._puller = Puller(
            identity, layout, shards, self._services, timeouts, scratch, self.pauses, self._stop
        )
        self._threads: list[threading.Thread] = []

    @property
    def bytes_up(self) -> int:
        return self._services.bytes_up

    @property
    def bytes_down(self) -> int:
        return self._services.bytes_down

    def waits_for_others(self, fragment: int) -> bool:
        """Whether a fragment's push is in, and its service there, as far as this rank knows."""
        return fragment in self._judged_pushes and not self._services.is_away(fragment)

    def close(self) -> None:
        """End every exchange under way, and see its thread out.

        A thread that is inside a call when the interpreter ends can take the process down with it.
        """
        self._stop.set()
        self._line.close()
        self._services.close()
        end = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def begin(self, push: Push) -> Future[Outcome]:
        """Push, and pull the result, in the background. The outcome says what went wrong."""
        self._seqs[push.fragment] += 1
        boxes = self._boxes[push.fragment]
        header = header_of(push, self._identity, self._seqs[push.fragment], boxes)
        place = self._line.join()  # here, since threads start in any order

        def pushed() -> Outcome:
            try:
                return self._push(push, header, place)
            finally:
                self._line.leave(place)

        return self._exchanged(pushed)

    def begin_pull(self, fragment: int, wanted: Wanted) -> Future[Outcome]:
        """Pull in the background, as if it had been pushed and merged; the newest if it is gone."""
        return self._exchanged(lambda: self._puller.kept(fragment, wanted))

    def begin_waiting(self, fragment: int, phase: int) -> Future[Outcome]:
        """Wait in the background for the end of a synchronous phase, and pull what is then.

        The outcome is GONE if the phase started again meanwhile, so that we could take part.
        """
        return self._exchanged(lambda: self._puller.first(fragment, phase))

    def states(self) -> dict[int, pb.FragmentState]:
        """Where each fragment stands, asked anew."""
        return self._services.states()

    def look(self, fragment: int, tell: Callable[[pb.FragmentState], None]) -> None:
        """Tell, on rank 0, where a fragment stands: in the background, once that is known."""
        if self._identity.rank == 0:
            self._in_background(lambda: tell(self._services.state(fragment)))

    def _push(self, push: Push, header: pb.PushHeader, place: Place) -> Outcome:
        """Push and pull until a result is known; a broken pull means that both come again."""
        patience: RoundPatience | None = None
        loss: Float32 | None = None
        while True:
            self._judged_pushes.discard(push.fragment)
            answer, instance = self._judged(push, header, place)
            self._judged_pushes.add(push.fragment)
            # The first time in line, and of sending, is not the round's.
            patience = patience or self._puller.patience()
            if verdict_of(answer) == pb.VERDICT_FENCED:
                return Outcome(answer=Answer.FENCED, reason=answer.reason)
            # Here, since a round is waited for anyway; the same however often the push is sent.
            loss = loss_by(push, answer) if loss is None else loss
            try:
                pulled = self._result(push, answer, instance, patience)
                if isinstance(pulled, Pulled) and is_forgotten(header, answer, instance, pulled):
                    pulled = NEW_SERVICE
            except RevisionGone:
                return Outcome(answer=Answer.GONE)
            if isinstance(pulled, str):
                name = self._puller.name(push.fragment)
                patience.check(name)
                if not self._stop.is_set():  # else the pull was broken off by our own end
                    log.info("push.again", fragment=name, seq=header.seq, why=pulled)
                self._stop.wait(AGAIN_S)
                continue
            lost = self._see_late(push.fragment, pulled.header)
            is_kept = self._late.keep(push, header, answer, instance)
            outcome = outcome_of(push, answer, pulled, loss)
            return replace(outcome, is_kept=is_kept, lost=joined(outcome.lost, lost))

    def _see_late(self, fragment: int, header: pb.PullHeader) -> Ranges:
        """Send the last push again if it came late, and its service has forgotten it since.

        Returns the data of one that is too old by now.
        """
        late = self._late.lost(fragment, header)
        if late is None:
            return NOTHING
        place = self._line.join()
        try:
            answer, instance = self._judged(late.push, late.header, place)
        finally:
            self._line.leave(place)
        if not self._late.keep(late.push, late.header, answer, instance):
            self._late.drop(fragment)
            if verdict_of(answer) == pb.VERDICT_STALE:
                name, so = self._puller.name(fragment), "what it holds is left out"
                log.warning("push.lost", fragment=name, why=answer.reason, so=so)
                return late.push.data
        return NOTHING

    def _judged(
        self, push: Push, header: pb.PushHeader, place: Place
    ) -> tuple[pb.PushResponse, str]:
        """Send until the push is judged: the answer, and who the service was before it."""
        services, fragment, waited_s = self._services, push.fragment, place.waited_s
        link, instance = services.link(fragment), ""

        def send() -> pb.PushResponse:
            nonlocal instance
            with self._line.turn(place) as sending:
                push.payload.here()  # before the service keeps room for it
                instance = link.instance
                epoch = services.epoch(fragment)
                # A base of another epoch may bear the number of one that is here, and be another.
                header.epoch = epoch if push.epoch is None else push.epoch
                answer = link.push(header, push.payload, sending)
            services.learn_epoch(fragment, epoch, answer.epoch or epoch)
            return answer

        # The time in line is our own.
        answer = services.keep_asking(fragment, send, lambda: place.waited_s - waited_s)
        return answer, instance

    def _result(
        self, push: Push, answer: pb.PushResponse, instance: str, patience: RoundPatience
    ) -> Pulled | str:
        """Wait for the result of a judged push; why, if that is to be sent again.

        Raises:
            RevisionGone: the synchronous phase went on, or started again, without us.
        """
        services, fragment, wanted = self._services, push.fragment, wanted_by(push, answer)
        while True:
            epoch = services.epoch(fragment)
            try:
                return self._puller.pull(fragment, wanted, push.held)
            except Stalled:
                patience.check(self._puller.name(fragment))
                if services.instance(fragment) != instance:
                    return NEW_SERVICE
            except PASSING as error:
                why = f"the pull was broken off: {error.message.rstrip('.')}"
                if not is_settled(answer):
                    return why
                patience.check(self._puller.name(fragment))
                self._stop.wait(AGAIN_S)
                services.instance(fragment)  # which waits for a service that is away
            except EpochChanged:
                services.learn_epoch(fragment, epoch, 0)
                return "the sync service has restored the run"
            except RevisionGone:
                if wanted.phase is not None:
                    raise
                # Others went on without us; what we pushed is in the newest, or was judged.
                wanted = self._puller.newest_instead(fragment, wanted, patience)

    def _exchanged(self, act: Callable[[], Outcome]) -> Future[Outcome]:
        """Begin ``act``; an error of ours becomes an outcome, a fault is raised to who reads it."""

        def ended() -> Outcome:
            try:
                return act()
            except LeaseLost as error:
                return Outcome(answer=Answer.FENCED, reason=error.message)
            except SynclineError as error:
                # Whoever reads that may come late, and its frames have what was sent.
                return Outcome(answer=Answer.FAILED, error=bare(error))

        return self._in_background(ended)

    def _in_background(self, act: Callable[[], Value]) -> Future[Value]:
        """Begin ``act``, and remember its thread; of the training thread."""
        work = in_background(act, "syncline-exchange")
        self._threads = [t for t in self._threads if t.is_alive()] + [work.thread]
        return work.future
