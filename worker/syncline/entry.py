"""Entering a run: the parameters from which to train, and the phase that the run is in.

A replica enters when it starts, and again when the synchronous phase went on without it. Runs on
the training thread, in the same order on every rank; trains and pushes no progress.
"""

from __future__ import annotations

from typing import NamedTuple

from structlog.typing import FilteringBoundLogger

from syncline.anchors import Anchors
from syncline.exchange import Exchange
from syncline.helm import Helm
from syncline.join import Joined
from syncline.push import Push, Wanted
from syncline.ranks import Ranks
from syncline.recall import unless_recalled
from syncline.rounds import Rounds
from syncline.waiting import TookTooLong, Waiting
from syncline.warmup import WarmUp
from syncline_proto.errors import CalledOff, RunConflict
from syncline_proto.v1 import sync_pb2 as pb


class Standing(NamedTuple):
    """Where a fragment stands, as a collective carries it."""

    revision: int
    gradient_step: int
    phase: int

    @property
    def has_begun(self) -> bool:
        """It is beyond the parameters with which the run began."""
        return self.revision > 0 or self.gradient_step > 0


class Entry:
    """One replica's way into its run."""

    def __init__(
        self,
        joined: Joined,
        ranks: Ranks,
        anchors: Anchors,
        exchange: Exchange,
        helm: Helm,
        rounds: Rounds,
        waiting: Waiting,
        log: FilteringBoundLogger,
    ) -> None:
        """``log`` is silent on all ranks but the first."""
        self._initialised = joined.initialised
        self._warmup_steps = joined.settings.warmup_steps
        self._ranks, self._anchors, self._exchange = ranks, anchors, exchange
        self._helm, self._rounds, self._waiting, self._log = helm, rounds, waiting, log

    def offer(self) -> None:
        """Offer this replica's parameters as revision 0 where there is none.

        Raises:
            RunOver, SynclineError: as ``Waiting.settled`` does.
        """
        offers = [
            (fragment, self._exchange.begin(self._offer(fragment)))
            for fragment in self._rounds.fragments
            if fragment not in self._initialised
        ]
        for fragment, offer in offers:
            self._waiting.settled(fragment, offer)

    def take(self) -> WarmUp | None:
        """Take the parameters from which to train; the synchronous phase if that is to be gone by.

        Raises:
            RunConflict: a part of the parameters was lost.
            RunOver, TookTooLong, SynclineError: as ``Waiting.settled`` does.
        """
        pull, fragments = self._exchange.begin_pull, self._rounds.fragments
        torn = False
        while True:
            states = self._look()
            has_begun = [one.has_begun for one in states]
            warm_up: WarmUp | None = None
            if self._warmup_steps == 0 or all(one.revision for one in states):
                taken = self._rounds.take([pull(f, Wanted()) for f in fragments])
            elif any(one.revision for one in states) and not all(has_begun):
                if not torn:  # services are asked one after another: the phase may have ended
                    torn = True
                    continue
                raise RunConflict(
                    "Everybody was lost while the synchronous phase ended, and a part of the "
                    "parameters with them: start another run."
                )
            elif any(has_begun):
                why = "the synchronous phase goes on without this replica"
                self._log.info("join.waits", why=why)
                wait = self._exchange.begin_waiting
                taken = self._rounds.take([wait(f, states[f].phase) for f in fragments])
            else:
                taken = self._rounds.take([pull(f, Wanted(revision=0)) for f in fragments])
                warm_up = WarmUp(
                    self._warmup_steps,
                    [one.phase for one in states],
                    self._anchors,
                    self._exchange,
                    self._waiting.settled,
                )
            if taken:
                return warm_up

    def _offer(self, fragment: int) -> Push:
        payload = self._anchors.parameters(fragment)
        return Push(fragment=fragment, kind=pb.PUSH_KIND_PARAMETERS, payload=payload)

    def _look(self) -> list[Standing]:
        """Ask where the run stands, on all ranks; who is asked to leave meanwhile does.

        Raises:
            CalledOff, TookTooLong: it was asked: while it joined, or later, when nothing that it
                has trained is left to wait for.
            SynclineError: a service does not answer.
        """
        try:
            helm = self._helm
            states = unless_recalled(self._states, helm.recall, self._ranks, helm.hear_operator)
        except CalledOff:
            if self._helm.joining:
                raise
            raise TookTooLong from None
        return [Standing(*one) for one in states]

    def _states(self) -> list[Standing]:
        """Of each fragment."""
        states = self._exchange.states()
        of_each = [states[f] for f in self._rounds.fragments]
        return [Standing(one.revision, one.gradient_step, one.phase) for one in of_each]
