"""A joiner's inner learning rate: it grows over its first steps, while its optimizer learns.

Pure. AdamW and its like divide by a running mean of squared gradients. One that begins anew in a
run that is under way has seen none, and its first steps are as long as at the run's beginning,
where a warm-up shortens them; the run's own is long over.
"""

from __future__ import annotations


class Ramp:
    """The share of the learning rate for each step: 1, but for the first steps after ``begin``."""

    def __init__(self, steps: int | None) -> None:
        """``steps`` is how many are shortened; None: a tenth of the interval between rounds.

        So a joiner's first push holds nearly as much progress as everybody's.
        """
        self._steps = steps
        self._first, self._count = 0, 0

    def begin(self, step: int, sync_every: int) -> None:
        """The next step, number ``step`` from 0, is the first of an optimizer without a state."""
        count = sync_every // 10 if self._steps is None else self._steps
        self._first, self._count = step, count

    def share(self, step: int) -> float:
        """Of the step with this number: 1/n, 2/n ... for the first n - 1, then 1."""
        done = step - self._first + 1
        return done / self._count if done < self._count else 1.0
