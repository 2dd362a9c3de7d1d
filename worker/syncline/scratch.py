"""Memory for what is pushed and pulled, used again from round to round.

What the kernel has just given it clears page by page, which takes longer than to write there what
was received; and each round needs as much as the last. So whoever has no more use for an array
gives it back, and the next one of the same size takes it. Beside a GPU it is pinned memory. Knows
nothing of what is in one. What slabs are to a sync service.
"""

from __future__ import annotations

from threading import Lock
from typing import Protocol

import numpy as np

from syncline_proto.codec import UInt8


class Event(Protocol):
    """A point in what a device has been told to do, as ``torch.Event``."""

    def wait(self) -> None:
        """Let the device's current stream go on from here only when it has been reached."""
        ...

    def query(self) -> bool:
        """Whether it has been reached."""
        ...

    def synchronize(self) -> None:
        """Wait until it has been."""
        ...


class Scratch:
    """Idle arrays, by their size. All methods may be called from any thread.

    An array that is given back has had its last use, or will have had it at an event. One that is
    not given back is freed with its last use: so it goes with arrays that may still be written to.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        """``pinned``: memory that a GPU copies from and to beside all else."""
        self._pinned = pinned
        self._lock = Lock()
        self._idle: dict[int, list[tuple[UInt8, Event | None]]] = {}
        self._unused: dict[int, int] = {}
        """By size: so many of the idle ones have not been taken since the last ``trim``."""

    def take(self, size: int) -> UInt8:
        """``size`` bytes with anything in them: uint8 [size]."""
        found = self._found(size)
        if found is None:
            return self._fresh(size)
        array, busy = found
        if busy is not None:
            busy.synchronize()
        return array

    def give_back(self, array: UInt8, busy: Event | None = None) -> None:
        """Let the next one have it, once a device that copies it has come past ``busy``."""
        with self._lock:
            if array.size:
                self._idle.setdefault(array.size, []).append((array, busy))

    def trim(self) -> None:
        """Let go of what has not been taken since the last call. Call it once a round."""
        with self._lock:
            for size, idle in list(self._idle.items()):
                del idle[: self._unused.get(size, 0)]
                self._unused[size] = len(idle)
                if not idle:
                    del self._idle[size], self._unused[size]

    def _found(self, size: int) -> tuple[UInt8, Event | None] | None:
        with self._lock:
            idle = self._idle.get(size)
            if not idle:
                return None
            self._unused[size] = min(self._unused.get(size, 0), len(idle) - 1)
            # The last one is in the processor's cache, if a device has not it still.
            free = (i for i in reversed(range(len(idle))) if _is_free(idle[i][1]))
            return idle.pop(next(free, 0))

    def _fresh(self, size: int) -> UInt8:
        if self._pinned and size:
            import torch  # who only copies checkpoints need not have it

            return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return np.empty(size, np.uint8)


def _is_free(busy: Event | None) -> bool:
    return busy is None or busy.query()
