"""What stretches stand for, range by range: dumb, and so for tests alone."""

from __future__ import annotations

from syncline_proto.ranges import Range, Ranges, joined
from syncline_proto.stretches import Stretches


def spread(stretches: Stretches) -> Ranges:
    """The ranges of each epoch."""
    return joined(
        Range(epoch, start, stop)
        for first, start, stop, epochs in stretches
        for epoch in range(first, first + epochs)
    )
