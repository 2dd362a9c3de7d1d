"""Memory straight from the kernel, which goes back there with its last use.

In huge pages where there are any: each is found, and fetched from a virtual machine's host, in one
go. What is freed to the allocator it would keep for long.
"""

from __future__ import annotations

import mmap

import numpy as np

from syncline_proto.codec.base import UInt8


def fresh(size: int) -> UInt8:
    """Zeros, from a page's beginning: uint8 [size]."""
    # Private: memory that processes may share has small pages only, each found for each write.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
