"""A difference that was pulled, before it is added to the anchor: as it came, and checked.

It is added where the anchor lies and written into the model in one pass, when that may change: as
new anchor first and into the model later it goes through memory twice. Knows nothing of calls,
services, fragments or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from syncline_proto.codec import Bytes, Count, Float32, Follower, UInt16, carry
from syncline_proto.spans import Spans

LONG = 4096
"""Elements of a span, tensor or chunk, on average, from which on a change is kept: each is gone
through by itself, and the training thread waits for it."""


@dataclass(slots=True)
class Change:
    """From a published value that is held to the next one."""

    held: UInt16
    """bf16, as bits, flat."""
    spans: Spans
    """Where that lies in its fragment."""
    chunks: list[Bytes] = field(default_factory=list[Bytes])
    """Of the difference, all before it lands; a ``Follower`` has found nothing wrong with them."""
    _done: Count = field(default_factory=lambda: np.zeros(1, np.int64))

    def made(self, out: UInt16) -> UInt16:
        """Write the next value, as far as it has come, to ``out``; ``held`` stays as it is."""
        follower, filled = Follower(self.held, self.spans), 0
        for chunk in self.chunks:
            filled += follower.follow(chunk, out[filled:])
        return out

    def carry(self, outs: Sequence[Float32]) -> None:
        """Make ``held`` the next value, and write that to ``outs`` (flat), one after another.

        Where it is broken off, by a signal say, it may be called again.
        """
        carry(self.chunks, self.held, self.spans, outs, self._done)


def is_long(elements: int, parts: int) -> bool:
    """Whether to go through so many elements in so many parts is quick: see ``LONG``."""
    return elements >= LONG * parts
