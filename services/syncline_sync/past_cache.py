"""Long files to the disk past the page cache, where the file system lets them.

What a commit writes is hardly ever read again by this machine. Through the page cache it is copied
into memory that the kernel has just found, and on a virtual machine fetches from the host first: a
commit took 0.6 to 1.4 CPU seconds per GB, and takes 0.5; the service 2.0 in a round of
`benchmarks/round.py`, and 1.7. So what lies in memory as it is to lie in the file (``placed``) is
written from there, and what does not is gathered in memory that is used again; what others have in
the cache stays, too. Knows nothing of what is written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Generator, Iterable

import numpy as np

from syncline_proto.codec import Bytes, crc32c
from syncline_proto.codec.base import UInt8
from syncline_sync.memory import BLOCK, FEW_BYTES, fresh

PIECE_BYTES = 4 << 20
"""Gathered, and written at a time; smaller ones cost more, since each is waited for."""

LONG_BYTES = 64 << 20
"""Written at a time from where they lie. After each the thread waits for a processor and Python's
lock, which others have amid a round: a durable round took up to 9 % longer with 4 MiB."""

PAST_CACHE = getattr(os, "O_DIRECT", 0)
"""The flag of a file that is written so; 0: this system has none."""

_mine = threading.local()


def write_parts(file: int, parts: Iterable[Bytes]) -> tuple[int, int]:
    """Write ``parts`` one after another from a new file's beginning; (bytes, CRC-32C).

    They are not synced yet.

    Raises:
        OSError: the disk refuses.
    """
    size, crc = 0, 0
    _set_past_cache(file, True)
    for piece in _pieces(parts, _piece_of_this_thread()):
        crc = crc32c(piece.data, crc)
        size += piece.size
        whole = piece.size - piece.size % BLOCK
        _write(file, piece[:whole])
        if whole < piece.size:  # the end of the file
            _set_past_cache(file, False)
            _write(file, piece[whole:])
    return size, crc


def _pieces(parts: Iterable[Bytes], into: UInt8) -> Generator[UInt8]:
    """The bytes of ``parts``, where they lie or through ``into``; in whole blocks but the last."""
    used = 0
    for part in parts:
        data = np.frombuffer(part, np.uint8)
        gap = -used % BLOCK
        end = gap + (data.size - gap) // BLOCK * BLOCK
        if end >= FEW_BYTES and (data.ctypes.data + gap) % BLOCK == 0:
            if used:
                into[used : used + gap] = data[:gap]
                yield into[: used + gap]
            yield from (data[at : min(at + LONG_BYTES, end)] for at in range(gap, end, LONG_BYTES))
            used, data = 0, data[end:]
        used = yield from _gathered(data, into, used)
    if used:
        yield into[:used]


def _gathered(data: UInt8, into: UInt8, used: int) -> Generator[UInt8, None, int]:
    """All of ``into``, each time it is full; how much of it is used then."""
    while data.size:
        some = data[: into.size - used]
        into[used : used + some.size] = some
        used, data = used + some.size, data[some.size :]
        if used == into.size:
            yield into
            used = 0
    return used


def _write(file: int, data: UInt8) -> None:
    while data.size:
        try:
            data = data[os.write(file, data.data) :]
        except OSError as error:
            # The flag was taken, but not the write; or only part of the one before, to no block's
            # end. Nothing is lost but the cache.
            if error.errno != errno.EINVAL or not _set_past_cache(file, False):
                raise


def _set_past_cache(file: int, wanted: bool) -> bool:
    """Whether that changed anything; a file system that has only its cache refuses."""
    before = fcntl.fcntl(file, fcntl.F_GETFL)
    flags = before | PAST_CACHE if wanted else before & ~PAST_CACHE
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
    except OSError:
        return False
    return flags != before


def _piece_of_this_thread() -> UInt8:
    """Where it gathers: uint8 [PIECE_BYTES], from a page's beginning."""
    if not hasattr(_mine, "piece"):
        _mine.piece = fresh(PIECE_BYTES)
    return _mine.piece
