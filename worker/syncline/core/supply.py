"""How many leased sequences a replica asks for ahead of its reading. Pure.

More ahead outlasts a longer absence of the control plane, and is more to wait for where the replica
is lost. A small dataset bounds it: what one replica holds, the others cannot read.
"""

from __future__ import annotations

from dataclasses import dataclass

OUTAGE_S = 300.0
"""The control plane may be away for so long while training goes on with what is leased."""

ROUNDS = 2
"""As many rounds ahead, however soon they are over."""

SHARE = 8
"""The stock is no more than this part of a replica's part of an epoch; its ranks may have taken as
much, and not read it."""


@dataclass(frozen=True, slots=True)
class Supply:
    """Bounds of rank 0's stock, in sequences."""

    least: int
    most: int
    ahead_s: float = OUTAGE_S
    """Between them, it is what is read in so long."""

    @classmethod
    def of(
        cls,
        sequences: int,
        replicas: int,
        batch: int,
        round_: int,
        round_s: float | None = None,
    ) -> Supply:
        """For a dataset of so many ``sequences``, in batches; ``round_``: those between two pushes.

        Where rounds are by time, they take ``round_s``, and ``round_`` is a guess until it is known
        how fast this replica reads. A batch is held whatever the bounds are.
        """
        most = max(batch, sequences // (SHARE * replicas))
        least = min(most, max(batch, ROUNDS * round_))
        return cls(least, most, max(OUTAGE_S, ROUNDS * (round_s or 0.0)))

    def lacking(self, held: int, per_second: float) -> int:
        """How many to ask for now: up to the target, once half of it is gone."""
        target = min(self.most, max(self.least, int(per_second * self.ahead_s)))
        return target - held if 2 * held <= target else 0
