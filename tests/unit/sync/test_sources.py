"""A published value that is read from its file: whole, or told with the reason."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.errors import RevisionGone, StoreDamaged
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import Saved
from syncline_sync.entries import Place
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.published import Published
from syncline_sync.sources import Filed

VALUES = np.arange(100_000, dtype=np.float32)
ALL = np.array([[0, VALUES.size]])


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
        with ThreadPoolExecutor(1) as pool:
            value = Published(Saved(), pb.CODEC_FP32, source)
            value.lend()
            await value.hold(pool)
            with pytest.raises(RevisionGone):
                await value.read(ALL, pool, pool)

    asyncio.run(held())
