"""What is written past the page cache is in the file, to the bit, whatever the disk says to it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.codec import crc32c
from syncline_sync import past_cache
from syncline_sync.past_cache import PIECE_BYTES, write_parts

DATA = np.random.default_rng(0).bytes(PIECE_BYTES + 20_000)

Write = Callable[[int, memoryview], int]
write: Write = os.write


def is_direct(file: int) -> bool:
    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & past_cache.PAST_CACHE)


def refuses_late(file: int, data: memoryview) -> int:
    """Some file systems take the flag, and then no write."""
    if is_direct(file):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return write(file, data)


def takes_little(file: int, data: memoryview) -> int:
    return write(file, data[:4608] if is_direct(file) else data[:1_000_003])


def takes_no_more(file: int, data: memoryview) -> int:
    """A piece's beginning came through; the rest then begins where no block does."""
    if is_direct(file) and os.fstat(file).st_size % 4096:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return takes_little(file, data)


@pytest.mark.parametrize("act", [write, refuses_late, takes_little, takes_no_more])
@pytest.mark.parametrize(
    "cuts", [(0,), (0, 7), (8, 4096), (0, 16, 16, PIECE_BYTES), (8, 5000, PIECE_BYTES + 20_000)]
)
def test_a_file_holds_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Write, cuts: tuple[int, ...]
) -> None:
    parts = [memoryview(DATA)[a:b] for a, b in zip((0, *cuts[:-1]), cuts, strict=True)]
    monkeypatch.setattr(os, "write", act)
    with (tmp_path / "f").open("wb", buffering=0) as file:
        done = write_parts(file.fileno(), parts)
    whole = DATA[: cuts[-1]]
    assert done == (len(whole), crc32c(whole))
    assert (tmp_path / "f").read_bytes() == whole


def test_only_what_fills_no_block_goes_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[tuple[bool, int]] = []

    def noted(file: int, data: memoryview) -> int:
        acts.append((is_direct(file), len(data)))
        return write(file, data)

    monkeypatch.setattr(os, "write", noted)
    with (tmp_path / "f").open("wb", buffering=0) as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETFL, past_cache.PAST_CACHE)
            may = is_direct(file.fileno())
        except OSError:
            may = False  # a file system that has only its cache
        fcntl.fcntl(file, fcntl.F_SETFL, 0)
        write_parts(file.fileno(), [DATA])
    assert acts == [(may, PIECE_BYTES), (may, 16_384), (False, 3_616)]


def test_a_disk_that_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: int, data: memoryview) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "write", refused)
    with (tmp_path / "f").open("wb", buffering=0) as file, pytest.raises(OSError, match="Invalid"):
        write_parts(file.fileno(), [DATA])


def test_a_system_without_it_writes_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_cache, "PAST_CACHE", 0)
    with (tmp_path / "f").open("wb", buffering=0) as file:
        assert write_parts(file.fileno(), [DATA]) == (len(DATA), crc32c(DATA))
        assert not is_direct(file.fileno())
    assert (tmp_path / "f").read_bytes() == DATA
