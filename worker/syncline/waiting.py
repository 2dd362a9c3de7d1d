"""Waiting for an exchange, and why a wait may end without what it was for.

Runs on the training thread, in the same order on every rank. Never writes what came into the
model: that is for whoever waits.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from syncline.core.agreement import Conclusion, Step
from syncline.council import NONE, Council, Futures
from syncline.helm import Helm
from syncline.push import Outcome
from syncline.recall import CALLED_OFF
from syncline_proto.errors import CalledOff, LeaseLost, ProcessFailed


class RunOver(Exception):
    """The run has ended while we waited; there is nothing more to merge."""


class TookTooLong(Exception):
    """The deadline for a wait has passed: the caller's, or that of who was asked to leave."""


class Waiting:
    """One replica's waits for its exchanges, one after another."""

    def __init__(self, council: Council, helm: Helm) -> None:
        self.is_on = False
        """Training stands still; read by the heartbeat's thread, too."""
        self._council, self._helm = council, helm

    def settled(
        self,
        fragment: int,
        future: Future[Outcome],
        until: float | None = None,
        on_long: Callable[[], None] | None = None,
        beside: Futures = NONE,
    ) -> tuple[Conclusion, Outcome]:
        """Wait for an exchange, on all ranks: the conclusion is MERGE, REBASE or REJOIN.

        ``on_long`` is called once if others make that take long. Of those ``beside`` it that have
        come already on all ranks the ranks need not talk again.

        Raises:
            RunOver: the run has ended.
            TookTooLong: it is past ``until`` (of ``time.monotonic``), or the time of a replica that
                was asked to leave is over, and the run goes on.
            CalledOff: the replica was asked to leave while it joined.
            LeaseLost: another life of this replica holds the lease, or none does.
            ProcessFailed: another rank failed.
            SynclineError: the exchange failed.
        """
        self.is_on = not future.done()
        try:
            conclusion, outcome = self._council.conclude(fragment, future, until, on_long, beside)
        finally:
            self.is_on = False
        if conclusion.step is Step.FAIL:
            raise outcome.error or ProcessFailed(
                "Another rank of this replica failed; its log says why."
            )
        if conclusion.step is Step.STOP:
            raise self.lost(outcome.reason)
        if conclusion.step is Step.ABANDON:
            if self._helm.is_called_off():
                raise CalledOff(CALLED_OFF)
            is_bounded = until is not None or self._helm.is_draining()
            if is_bounded and not self._helm.run_has_ended():
                raise TookTooLong
            raise RunOver
        return conclusion, outcome

    def lost(self, why: str) -> Exception:
        """What to raise where the lease is gone: RunOver if that is because the run has ended."""
        if self._helm.run_has_ended():
            return RunOver()
        heard = self._helm.why_lost()
        why = heard or f"{(why or 'another rank was refused').rstrip('.')}; start the replica again"
        return LeaseLost(f"The lease is lost: {why.rstrip('.')}.")
