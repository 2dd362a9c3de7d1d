"""Memory for pushes in flight, in slabs that are used again.

Memory that the kernel has just given costs more time than all arithmetic on what is put there: its
pages are cleared one by one, and on a virtual machine fetched from the host first
(`benchmarks/wire.py`). So the slabs of a settled push wait for the next one: no more of them than
there is room for, and none for long that nobody needs. Knows nothing of pushes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from syncline_proto.codec.base import UInt8
from syncline_sync.memory import fresh

SLAB_BYTES = 2 << 20
"""The size of a huge page: such a slab is fetched in one go where the kernel has one to give."""

KEPT_BYTES = 256 << 20
"""May be idle beside a budget that is used to its limit: who has room next takes them at once."""


class Slabs:
    """Idle slabs. Threads may take, and ask for less; one loop gives back and trims.

    A slab that is given back, or let go of, has had its last use there: it may be another's at
    once.
    """

    def __init__(self, kept: int = KEPT_BYTES, room: Callable[[], int] = lambda: 0) -> None:
        """``kept``: bytes that may be idle; or ``room()``, what is nobody's now, if that is more.

        A round whose pushes wait for each other as they came needs that again with the next one.
        """
        self._kept, self._room = kept, room
        self._idle: list[UInt8] = []
        self._unused = 0
        """So many of the idle ones have not been taken since the last ``trim``."""

    @property
    def idle(self) -> int:
        """Bytes that wait to be taken."""
        return len(self._idle) * SLAB_BYTES

    def take(self) -> UInt8:
        """A slab with anything in it: uint8 [SLAB_BYTES]."""
        try:
            slab = self._idle.pop()
        except IndexError:
            return fresh(SLAB_BYTES)
        self._unused = min(self._unused, len(self._idle))
        return slab

    def less(self, size: int) -> UInt8:
        """Memory for what is less than a slab, and is not used again: uint8 [size].

        As much of what is idle goes for it as there is no room for any more.
        """
        self._shrink()
        return np.empty(size, np.uint8)

    def give_back(self, slabs: list[UInt8]) -> None:
        """Keep slabs for the next push, as many as there may be."""
        self._idle += slabs
        self._shrink()

    def _shrink(self) -> None:
        surplus = len(self._idle) - max(self._kept, self._room()) // SLAB_BYTES
        if surplus > 0:
            del self._idle[:surplus]
            self._unused = max(0, self._unused - surplus)

    def trim(self) -> None:
        """Let go of what has not been taken since the last call. Call it now and then."""
        del self._idle[: self._unused]
        self._unused = len(self._idle)
