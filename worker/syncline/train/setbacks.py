"""Inner steps whose loss is not finite: how many are bad luck, and what is done about more.

A step is skipped. A few in a row are a sick model: a replica of a run goes back to what the run
has. Where there is nothing to go back to, or it helps no more, training ends.
"""

from __future__ import annotations

import structlog

from syncline import Replica
from syncline_proto.errors import TrainingDiverged

log = structlog.get_logger()

BACK_AFTER = 3
"""Skipped in a row, after which a replica goes back to its run's newest revision."""

RETURNS_MAX = 2
"""So often without a round in between; another would begin where these have."""

SKIPS_MAX = 5
"""Skipped in a row where there is nothing to go back to."""

WHAT_TO_DO = "lower optimizer.lr, or raise optimizer.warmup_tokens."


class Setbacks:
    """Those of one replica; the same on every rank, as losses are."""

    def __init__(self, replica: Replica, *, first: bool) -> None:
        """``first``: this rank speaks for all."""
        self.count = 0
        """Steps that were skipped."""
        self._replica, self._first = replica, first
        self._in_a_row = 0
        self._returns, self._rounds = 0, 0

    def none(self) -> None:
        """A step was as it should be."""
        self._in_a_row = 0

    def skipped(self, loss: float, grad_norm: float) -> None:
        """A step was not finite, and nothing was changed by it.

        Raises:
            TrainingDiverged: it was one too many.
        """
        self.count += 1
        self._in_a_row += 1
        if self._first:
            log.warning("step skipped: not finite", loss=loss, grad_norm=grad_norm)
        if self._in_a_row >= SKIPS_MAX:
            raise TrainingDiverged(
                f"the loss or its gradient was not finite in {SKIPS_MAX} steps in a row; "
                f"{WHAT_TO_DO}"
            )
        if self._in_a_row == BACK_AFTER:
            self._go_back()

    def _go_back(self) -> None:
        rounds = self._replica.stats.rounds
        if rounds != self._rounds:
            self._returns, self._rounds = 0, rounds
        if self._returns >= RETURNS_MAX:
            raise TrainingDiverged(
                f"the loss or its gradient was not finite in {BACK_AFTER} steps in a row, and "
                f"again after {RETURNS_MAX} returns to the run's newest revision; {WHAT_TO_DO}"
            )
        if self._replica.go_back():
            self._in_a_row = 0
            self._returns += 1
