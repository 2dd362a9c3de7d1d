"""Inner steps whose loss is not finite: how many are bad luck, and what is done about more.

A step is skipped. A few in a row are a sick model: a replica of a run goes back to what the run
has. Where there is nothing to go back to, or it helps no more, training ends.
"""

from __future__ import annotations

import weakref
from typing import Protocol

from structlog.typing import FilteringBoundLogger
from torch import Tensor
from torch.optim import Optimizer

from syncline.finite import gradient_norm
from syncline.stats import Stats, number_of
from syncline_proto.errors import TrainingDiverged

BACK_AFTER = 3
"""Skipped in a row, after which a replica goes back to its run's newest revision."""

RETURNS_MAX = 2
"""So often without a round in between; another would begin where these have."""

SKIPS_MAX = 5
"""Skipped in a row where there is nothing to go back to."""

WHAT_TO_DO = "lower the learning rate, warm it up for longer, or look at the data."
"""In any loop."""


class GoesBack(Protocol):
    """A replica, as far as is needed here."""

    @property
    def stats(self) -> Stats: ...

    def go_back(self) -> bool: ...


class Setbacks:
    """Those of one replica; told the same on every rank."""

    def __init__(self, replica: GoesBack, what_to_do: str = WHAT_TO_DO) -> None:
        """``what_to_do`` ends the sentence with which training does."""
        self.count = 0
        """Steps that were skipped."""
        # The replica holds its setbacks: a strong reference back would keep both until the garbage
        # collector runs.
        self._replica = weakref.proxy(replica)
        self._what_to_do = what_to_do
        self._in_a_row = 0
        self._returns, self._rounds = 0, 0

    def none(self) -> None:
        """A step was as it should be."""
        self._in_a_row = 0

    def skipped(self, log: FilteringBoundLogger, **figures: object) -> None:
        """A step was not finite, and nothing was changed by it; ``figures`` show it.

        Raises:
            TrainingDiverged: it was one too many.
        """
        self.count += 1
        self._in_a_row += 1
        log.warning("step skipped: not finite", **figures)
        if self._in_a_row >= SKIPS_MAX:
            raise TrainingDiverged(
                f"the loss or its gradient was not finite in {SKIPS_MAX} steps in a row; "
                f"{self._what_to_do}"
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
                f"again after {RETURNS_MAX} returns to the run's newest revision; "
                f"{self._what_to_do}"
            )
        if self._replica.go_back():
            self._in_a_row = 0
            self._returns += 1


def figures_of(
    optimizer: Optimizer, loss: float | Tensor | None, grad_norm: float | Tensor | None
) -> dict[str, float]:
    """What tells, as numbers: the gradient's norm, and what is given.

    A GPU is told all before one of them is waited for: the norm, which is the last, so once.

    Raises:
        ConfigError: one is no number.
    """
    norm = gradient_norm(optimizer) if grad_norm is None else grad_norm
    given = {"grad_norm": norm, "loss": loss}
    return {key: number_of(value, key) for key, value in given.items() if value is not None}
