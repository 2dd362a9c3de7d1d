"""A published value that is read from its file: whole, or told with the reason."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.errors import Overloaded, RevisionGone, StoreDamaged
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import descriptors
from syncline_sync.core.record import Saved
from syncline_sync.disk import READERS, Disk
from syncline_sync.entries import Place
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.pool import shut_down
from syncline_sync.published import Published
from syncline_sync.shelf import Loan, Shelf
from syncline_sync.sources import Filed

VALUES = np.arange(100_000, dtype=np.float32)
ALL = np.array([[0, VALUES.size]])


@contextmanager
def disk_threads() -> Iterator[Disk]:
    disk = Disk()
    try:
        yield disk
    finally:
        assert shut_down(disk.pools, 60)


def filed(folder: Path) -> tuple[Filed, Path]:
    store = FragmentStore(folder, Place(run="r", fragment=0, layout="l", numel=VALUES.size))
    store.commit(Saved(), VALUES, np.zeros_like(VALUES))
    return store.filed(Saved(), pb.CODEC_FP32), store.folder / "r00000000.safetensors"


def test_a_file_that_was_cut_after_it_was_checked_gives_nothing_of_earlier_memory(
    tmp_path: Path,
) -> None:
    source, path = filed(tmp_path)
    assert source.read(ALL) == VALUES.tobytes()
    os.truncate(path, path.stat().st_size - VALUES.nbytes - 40)  # momentum lies behind them
    assert source.read(np.array([[0, 99_990]])) == VALUES[:99_990].tobytes()
    with pytest.raises(StoreDamaged, match=path.name):
        source.read(np.array([[3, 5], [99_990, 10]]))
    source.close()


def test_a_disk_that_does_not_give_a_file_is_damage_and_only_one_that_has_none_is_gone(
    tmp_path: Path,
) -> None:
    source, path = filed(tmp_path)
    path.unlink()
    with pytest.raises(RevisionGone, match=path.name):
        source.read(ALL)
    path.symlink_to(path)  # it cannot be opened
    with pytest.raises(StoreDamaged, match=path.name):
        source.read(ALL)
    path.unlink()
    path.mkdir()  # it can be opened, and not read
    with pytest.raises(StoreDamaged, match=path.name):
        source.read(ALL)
    source.close()


def test_a_file_that_is_lost_before_it_is_held_is_its_readers_matter(tmp_path: Path) -> None:
    """And not that of the commit which is about to remove it."""
    source, path = filed(tmp_path)
    path.unlink()

    async def held() -> None:
        with disk_threads() as disk:
            value = Published(Saved(), pb.CODEC_FP32, source)
            value.lend()
            await value.hold(disk)
            with pytest.raises(RevisionGone):
                await value.read(ALL, disk.readers, disk.readers)

    asyncio.run(held())


def test_a_file_for_which_no_descriptor_is_left_is_its_readers_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For now: it is there, and read as soon as there is one."""
    monkeypatch.setattr(descriptors, "WAIT_S", 0.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    source, _ = filed(tmp_path)

    async def held() -> None:
        with disk_threads() as disk:
            value = Published(Saved(), pb.CODEC_FP32, source)
            value.lend()
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            try:
                await value.hold(disk)
                loan = Loan(Shelf("revision"), 1, value)
                with pytest.raises(Overloaded, match="at most 0 are allowed.*try again: the runs"):
                    await loan.read(ALL, disk.readers, disk.readers)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert await value.read(ALL, disk.readers, disk.readers) == VALUES.tobytes()
            value.drop()
            value.give_back()

    asyncio.run(held())


def test_a_file_is_open_only_while_somebody_reads_it(tmp_path: Path) -> None:
    """Its revision is kept for long, and there may be more fragments than descriptors."""
    source, _ = filed(tmp_path)

    async def read() -> None:
        with disk_threads() as disk:
            value = Published(Saved(), pb.CODEC_FP32, source)
            for _ in range(2):
                value.lend()
                value.lend()
                assert await value.read(ALL, disk.readers, disk.readers) == VALUES.tobytes()
                value.give_back()
                assert source._file >= 0, "another has it still"
                value.give_back()
                assert source._file < 0

    asyncio.run(read())


def test_what_waits_for_readers_is_held_before_they_are_done(tmp_path: Path) -> None:
    """A commit waits for that."""
    source, path = filed(tmp_path)
    may_end = threading.Event()

    async def held() -> None:
        with disk_threads() as disk:
            value = Published(Saved(), pb.CODEC_FP32, source)
            value.lend()
            for _ in range(READERS):
                disk.readers.submit(may_end.wait)
            try:
                await asyncio.wait_for(value.hold(disk), 20)
            finally:
                may_end.set()
            path.unlink()
            assert await value.read(ALL, disk.readers, disk.readers) == VALUES.tobytes()
            value.drop()
            value.give_back()

    asyncio.run(held())


@pytest.mark.parametrize("ended", ["later", "before it begins", "before it is asked"])
def test_a_file_that_nobody_reads_any_more_is_closed_off_the_loop(
    tmp_path: Path, ended: str
) -> None:
    """Where the readers' threads have ended it is closed all the same."""
    source, path = filed(tmp_path)
    may_end = threading.Event()

    async def scenario() -> None:
        disk = Disk()
        value = Published(Saved(), pb.CODEC_FP32, source)
        value.lend()
        await value.hold(disk)
        path.unlink()
        if ended == "before it is asked":
            assert shut_down(disk.pools, 60)
        else:
            for _ in range(READERS):
                disk.readers.submit(may_end.wait)
        value.drop()
        assert source._file >= 0, "it is read still"
        value.give_back()
        assert (source._file >= 0) == (ended != "before it is asked"), "it waits for a thread"
        if ended == "before it begins":
            disk.readers.shutdown(wait=False, cancel_futures=True)
        may_end.set()
        assert shut_down(disk.pools, 60)
        assert source._file < 0

    asyncio.run(scenario())


def test_a_file_is_not_closed_while_it_is_being_held(tmp_path: Path) -> None:
    """Else it would be opened after that, and stay so."""
    source, _ = filed(tmp_path)

    async def scenario() -> None:
        with disk_threads() as disk:
            value = Published(Saved(), pb.CODEC_FP32, source)
            value.lend()
            with source._lock:  # the thread that is to open it stands there
                holding = asyncio.create_task(value.hold(disk))
                await asyncio.sleep(0)
                value.drop()
                value.give_back()
                await asyncio.sleep(0.01)
            await holding
        assert source._file < 0

    asyncio.run(scenario())
