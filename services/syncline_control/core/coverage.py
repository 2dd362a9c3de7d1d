"""How far a run has come in its data, epoch by epoch. Pure."""

from __future__ import annotations

from typing import NamedTuple

from syncline_control.core.ledger import Done, Ledger
from syncline_proto.ranges import count


class EpochCounts(NamedTuple):
    """Sequences of an epoch, by what has become of them; together they are all of it."""

    epoch: int
    trained: int
    excluded: int
    leased: int
    """To somebody who is there, or is gone, and it settles."""
    free: int


def counts(ledger: Ledger, sequences: int) -> list[EpochCounts]:
    """Count every epoch that anything was given out of, the first one first."""
    leased: dict[int, int] = {}
    for span in ledger.spans:
        if not span.is_free:
            epoch = span.range.epoch
            leased[epoch] = leased.get(epoch, 0) + count((span.range,))
    found: list[EpochCounts] = []
    for epoch in sorted({*ledger.done, *(span.range.epoch for span in ledger.spans)}):
        done = ledger.done.get(epoch, Done())
        trained, excluded = count(done.trained), count(done.excluded)
        held = leased.get(epoch, 0)
        free = sequences - trained - excluded - held
        found.append(EpochCounts(epoch, trained, excluded, held, free))
    return found
