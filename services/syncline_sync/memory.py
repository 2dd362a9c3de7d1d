"""Memory straight from the kernel, which goes back there with its last use.

In huge pages where there are any: each is found, and fetched from a virtual machine's host, in one
go. What is freed to the allocator it would keep for long.
"""

from __future__ import annotations

import mmap
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from syncline_proto.codec.base import UInt8

BLOCK = 4096
"""A multiple of what any disk reads and writes at a time, in memory and in the file."""

FEW_BYTES = 1 << 20
"""Less is not worth pages of its own."""

T = TypeVar("T", np.float32, np.uint16)


def fresh(size: int) -> UInt8:
    """Zeros, from a page's beginning: uint8 [size]."""
    # Private: memory that processes may share has small pages only, each found for each write.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def placed(count: int, dtype: type[T], at: int) -> npt.NDArray[T]:
    """Zeros [count] that lie to a page as byte ``at`` of a file lies to a block.

    So a disk takes from there what is to stand there, without a copy (``past_cache``); few lie
    anywhere.
    """
    size, skipped = count * np.dtype(dtype).itemsize, at % BLOCK
    if size < FEW_BYTES:
        return np.zeros(count, dtype)
    return fresh(skipped + size)[skipped:].view(dtype)
