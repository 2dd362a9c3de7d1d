"""Memory for what is pushed and pulled, used again from round to round.

What the kernel has just given it clears page by page, which takes longer than to write there what
was received; and each round needs as much as the last. So whoever has no more use for an array
gives it back, and the next one of the same size takes it. Knows nothing of what is in one. What
slabs are to a sync service.
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from syncline_proto.codec import UInt8


class Scratch:
    """Idle arrays, by their size. All methods may be called from any thread.

    One that is given back has had its last use there. One that is not is lost to this, and freed
    with its last use: so one in which something may still be stays out of it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._idle: dict[int, list[UInt8]] = {}
        self._unused: dict[int, int] = {}
        """By size: so many of the idle ones have not been taken since the last ``trim``."""

    @property
    def idle_bytes(self) -> int:
        with self._lock:
            return sum(size * len(idle) for size, idle in self._idle.items())

    def take(self, size: int) -> UInt8:
        """``size`` bytes with anything in them: uint8 [size]."""
        with self._lock:
            if idle := self._idle.get(size):
                array = idle.pop()
                self._unused[size] = min(self._unused.get(size, 0), len(idle))
                return array
        return np.empty(size, np.uint8)

    def give_back(self, array: UInt8) -> None:
        """Let the next one have it."""
        with self._lock:
            if array.size:
                self._idle.setdefault(array.size, []).append(array)

    def trim(self) -> None:
        """Let go of what has not been taken since the last call. Call it once a round."""
        with self._lock:
            for size, idle in list(self._idle.items()):
                del idle[: self._unused.get(size, 0)]
                self._unused[size] = len(idle)
                if not idle:
                    del self._idle[size], self._unused[size]
