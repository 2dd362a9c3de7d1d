"""The end of a run, as a replica comes to it: with which parameters it is left.

The run's token budget is committed, or somebody has ended the run. Runs on the training thread, in
the same order on every rank; pushes nothing, and waits no longer than a round may take.
"""

from __future__ import annotations

import time

from structlog.typing import FilteringBoundLogger

from syncline.exchange import Exchange
from syncline.helm import Helm
from syncline.push import Wanted
from syncline.rounds import Rounds
from syncline.waiting import RunOver, TookTooLong
from syncline_proto.errors import SynclineError
from syncline_proto.settings import RunSettings


class RunEnd:
    """One replica's end of its run."""

    def __init__(
        self,
        rounds: Rounds,
        exchange: Exchange,
        helm: Helm,
        settings: RunSettings,
        log: FilteringBoundLogger,
    ) -> None:
        """``log`` is silent on all ranks but the first.

        Of ``settings`` only what never changes is read.
        """
        self._rounds, self._exchange, self._helm = rounds, exchange, helm
        self._settings, self._log = settings, log

    def finish(self) -> None:
        """The budget is committed: stay with everyone's value, and say it to the control plane."""
        if self._rounds.has_progress:  # too late for the last round; its value is everyone's
            self._rounds.drop_progress()
        self._helm.finish_run()
        self._count_no_more()
        tokens, budget = self._rounds.tally.committed, self._settings.token_budget
        self._log.info("run.finished", tokens=tokens, budget=budget)

    def follow(self) -> None:
        """The run has ended elsewhere: take its last value, if it is still to be had."""
        self._rounds.forget()
        self._helm.end()
        futures = [self._exchange.begin_pull(f, Wanted()) for f in self._rounds.fragments]
        limit_s = self._settings.timeouts.round_deadline_s
        try:
            self._rounds.take(futures, time.monotonic() + limit_s)
        except (SynclineError, RunOver, TookTooLong) as error:
            why = str(error) or f"its last value did not come within {limit_s:g} s"
            self._log.warning("run.ended", so="the parameters stay as they are", why=why)
            return
        self._count_no_more()
        self._log.info("run.ended", so="the parameters are its newest revision")

    def _count_no_more(self) -> None:
        """The parameters are the run's, without steps of this replica's own; so is the count."""
        tally = self._rounds.tally
        tally.since_sync = tally.pushed = 0
