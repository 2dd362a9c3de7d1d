"""What became of all progress of a replica's life: accepted, discarded, or owed. All of it once.

With error feedback a push carries what earlier ones have lost. So what was accepted, as the store
has committed it, what was discarded, and what the replica still owes must be the sum of its
progress, element by element. Never asks what the service has said of a residual.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from chaos.reference import Float32

Float64 = npt.NDArray[np.float64]

OFF = 2.0**-22
"""Of the magnitudes that were added up in fp32: what rounding may come to."""


@dataclass(slots=True)
class Account:
    """Of one fragment, in one life."""

    numel: int
    progress: Float64 = field(init=False)
    settled: Float64 = field(init=False)
    """What was accepted, and what was discarded."""
    added: Float64 = field(init=False)
    """Magnitudes."""
    pushes: int = 0
    owed: int = 0
    """Pushes that carried something that was owed."""

    def __post_init__(self) -> None:
        self.progress, self.settled, self.added = np.zeros((3, self.numel))

    def enter(self, progress: Float32, owed: Float32 | None, accepted: Float32 | None) -> None:
        """A push is in a revision: with what it says, or discarded (None)."""
        self.pushes += 1
        self.owed += owed is not None
        if accepted is None:
            if owed is not None:
                self.settled += owed  # of the progress itself both sums would have the same
            return
        self.progress += progress
        self.settled += accepted
        for some in (progress, accepted, 0 if owed is None else owed):
            self.added += np.abs(some)

    def check(self, owed: Float32 | None, what: Any) -> None:
        """The replica owes this, and all that it has pushed is in a revision."""
        off = np.abs(self.progress - self.settled - (0 if owed is None else owed))
        worst = int(np.argmax(off - OFF * self.added))
        assert off[worst] <= OFF * self.added[worst], (
            f"{what}: of element {worst} {off[worst]} came twice or never"
        )
