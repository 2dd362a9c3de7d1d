"""What the C library's allocator does with memory that is free again: it keeps some of it.

Every chunk that comes is up to 2 MiB of fresh memory for a moment. glibc asks the kernel for each
such piece and hands it back, and the kernel clears its pages one by one: that took more time than
all arithmetic on what is in them (`benchmarks/wire.py`). Kept here is at most ``KEPT_BYTES`` of
each of ``ARENAS``; pieces of ``LARGE_BYTES`` and more, such as whole fragments, go back as before.

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

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h


def keep_freed_memory() -> None:
    """Tell the allocator of this process, if it is glibc's; call it before there are threads."""
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, ARENAS)
        library.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
