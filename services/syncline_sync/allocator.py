"""What the C library's allocator does with memory that is free again: it keeps some of it.

Every chunk that comes is up to 2 MiB of fresh memory for a moment. glibc asks the kernel for each
such piece and hands it back, and the kernel clears its pages one by one: that took more time than
all arithmetic on what is in them (`benchmarks/wire.py`). Kept here is at most ``KEPT_BYTES`` of
each of ``ARENAS``; pieces of ``LARGE_BYTES`` and more, such as whole fragments, go back as before.
That is of what lies at an arena's end. Free memory between pieces in use glibc keeps without end,
and a flood of calls leaves hundreds of MiB of it: ``Leavings`` gives that back, from time to time.

Not for replicas: glibc raises both bounds itself with the first large tensors that are freed, and
keeps what it has from then on. Bounds that are set keep it from that: a round of a replica took
1.0 s of CPU with these in place of 0.75 (`benchmarks/round.py`, bf16).
"""

from __future__ import annotations

import ctypes
import platform

LARGE_BYTES = 8 << 20
KEPT_BYTES = 32 << 20
ARENAS = 2
"""Memory that one thread has freed is another's sooner than with one arena for each."""

LEFT_BYTES = 128 << 20
"""Free memory that a look finds beyond what the looks before it left: so much goes back."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h


def keep_freed_memory() -> None:
    """Tell the allocator of this process, if it is glibc's; call it before there are threads."""
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, ARENAS)
        library.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


class _Mallinfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``, over all arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class Leavings:
    """What is free between pieces in use; the allocator counts it as free after it went back, too.

    One thread looks at a time. A look walks all free pieces: it is for a thread of the pool.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        self._told = getattr(library, "mallinfo2", None)  # from glibc 2.33 on
        if self._told is not None:
            self._told.restype = _Mallinfo
        self._left = 0
        """Bytes that were free at the last look, or at one since then when fewer were."""

    def give_back(self) -> bool:
        """Give the kernel what is free, if much has become so; whether it has."""
        if self._told is None or self._trim is None:
            return False
        free = self._told().fordblks
        is_much = free > self._left + LEFT_BYTES
        if is_much:
            self._trim(KEPT_BYTES)
        if is_much or free < self._left:
            self._left = free
        return is_much
