"""What is written past the page cache is in the file, to the bit, whatever the disk says to it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.codec import Bytes, crc32c
from syncline_proto.codec.base import UInt8
from syncline_sync import past_cache
from syncline_sync.core.record import Saved
from syncline_sync.entries import Place, new_momentum, new_parameters, new_published
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.memory import BLOCK, placed
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


@contextmanager
def noted(monkeypatch: pytest.MonkeyPatch) -> Generator[list[UInt8]]:
    """What the disk is given to write, in the block."""
    given: list[UInt8] = []

    def note(file: int, data: memoryview) -> int:
        given.append(np.frombuffer(data, np.uint8))
        return write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", note)
        yield given


def written(parts: list[Bytes], path: Path, monkeypatch: pytest.MonkeyPatch) -> list[UInt8]:
    """What the disk was given to write ``parts``; they are in the file then, whole."""
    with path.open("wb", buffering=0) as file, noted(monkeypatch) as given:
        done = write_parts(file.fileno(), parts)
    whole = b"".join(bytes(part) for part in parts)
    assert done == (len(whole), crc32c(whole))
    assert path.read_bytes() == whole
    return given


def copied(given: list[UInt8], parts: list[Bytes]) -> int:
    """How many bytes were not written from where they lie."""
    arrays = [np.frombuffer(part, np.uint8) for part in parts]
    return sum(g.size for g in given if not any(np.shares_memory(g, a) for a in arrays))


def test_what_lies_as_in_the_file_is_written_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numel, rng = 1_500_007, np.random.default_rng(0)
    arrays = [new_parameters(numel), new_momentum(numel)]
    for array in arrays:
        array[:] = rng.standard_normal(numel, np.float32)
    sent = new_published(numel)
    sent[:] = rng.integers(0, 1 << 16, numel, np.uint16)
    parts = [bytes(BLOCK), *(array.data.cast("B") for array in (*arrays, sent))]
    assert copied(written(parts, tmp_path / "f", monkeypatch), parts) <= 4 * BLOCK
    shifted = [b"a header of another length", *parts[1:]]
    assert copied(written(shifted, tmp_path / "g", monkeypatch), shifted) == sum(map(len, shifted))


def test_a_commit_copies_no_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that are new, and not those that a start has read."""
    numel = 1_500_007
    store = FragmentStore(tmp_path / "f", Place(run="r", fragment=0, layout="l", numel=numel))
    arrays = new_parameters(numel), new_momentum(numel), new_published(numel)
    for revision in range(2):
        with noted(monkeypatch) as given:
            store.commit(Saved(revision=revision, down="int8"), *arrays)
        assert copied(given, [array.data.cast("B") for array in arrays]) <= 5 * BLOCK
        loaded = store.load()
        assert loaded is not None and loaded.published is not None
        arrays = loaded.parameters, loaded.momentum, loaded.published


@pytest.mark.parametrize("seed", range(20))
def test_it_is_all_one_to_the_file_how_parts_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(past_cache, "LONG_BYTES", 1 << 20)
    rng, parts, at = np.random.default_rng(seed), list[Bytes](), 0
    for _ in range(6):
        size = int(rng.choice([0, 1, 5000, 1 << 20, PIECE_BYTES, int(rng.integers(1, 6 << 20))]))
        lies = at if rng.random() < 0.7 else int(rng.integers(BLOCK))
        array = placed(size // 2, np.uint16, lies)
        array[:] = rng.integers(0, 1 << 16, array.size, np.uint16)
        parts.append(array.data.cast("B"))
        at += 2 * array.size
    written(parts, tmp_path / "f", monkeypatch)


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
