"""What is published before it is on the disk: one revision at most, which stays as it is.

All is real but how long a sync takes, and whether it is refused.
"""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from syncline_proto.codec import CODEC_BY_NAME, encode
from syncline_proto.errors import StoreError
from syncline_sync import lull
from syncline_sync.core.record import Kind
from syncline_sync.fragment_store import FragmentStore
from syncline_testing.held import NUMEL, PLACE, Fragment, run, values
from syncline_testing.slow_disk import SlowDisk

FIRST = "r00000001.safetensors"


def on_disk(folder: Path) -> list[int]:
    """The revisions that a service would find that starts now."""
    loaded = FragmentStore(folder / "00000", PLACE).load()
    assert loaded is not None
    return [saved.revision for saved in loaded.revisions]


def test_what_is_behind_is_written_once_nothing_moves_or_somebody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(f: Fragment) -> None:
        monkeypatch.setattr(lull, "LATEST_S", 600.0)
        await f.offer(values(1))
        monkeypatch.setattr(lull, "QUIET_S", 600.0)
        f.lull.moved()
        await f.round(values(2))
        await asyncio.sleep(0.05)
        assert on_disk(tmp_path) == [0], "its replicas are still to pull it"
        f.lull.moved()
        await f.round(values(3))
        assert on_disk(tmp_path) == [0, 1], "the outer step waits for it"
        await f.holding.written()
        assert on_disk(tmp_path) == [1, 2]
        monkeypatch.setattr(lull, "QUIET_S", 0.01)
        f.lull.moved()
        await f.round(values(4))
        while on_disk(tmp_path) != [2, 3]:  # nobody has asked for it
            await asyncio.sleep(0.002)
        monkeypatch.setattr(lull, "QUIET_S", 600.0)
        f.lull.moved()
        await f.round(values(5))
        await f.holding.end()
        assert on_disk(tmp_path) == [3, 4]

    run(tmp_path, scenario, behind=True)


@pytest.mark.parametrize("down", ["bf16", "fp32"])
def test_all_goes_on_while_a_revision_is_written_but_the_next_outer_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, down: str
) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        first = await f.read(0)
        with SlowDisk(monkeypatch, FIRST) as disk:
            await f.round(values(2))
            await disk.until(lambda d: len(d.at_once) == 1)
            assert on_disk(tmp_path) == [0]
            parameters = f.holding._parameters.copy()
            newest = await f.read(1)
            assert newest == bytes(encode(parameters, CODEC_BY_NAME[down]))
            await f.fold(values(3))  # the next round's
            await f.holding.fold_first()
            assert [await f.read(0), await f.read(1)] == [first, newest]
            closing = asyncio.create_task(f._finish(Kind.PSEUDO_GRADIENT, 1.0))
            await asyncio.sleep(0.05)
            assert not closing.done() and f.holding.revisions.newest == 1
            assert np.array_equal(f.holding._parameters, parameters), "they are being written"
            disk.open()
            await closing
        assert [await f.read(1), f.holding.revisions.newest] == [newest, 2]
        await f.holding.end()
        assert on_disk(tmp_path) == [1, 2]

    async def after(f: Fragment) -> None:
        assert f.revision == 2
        assert not f.store.is_behind, "a clean end leaves nothing behind"

    run(tmp_path, scenario, down, behind=True)
    run(tmp_path, after, down)


def test_the_store_is_told_once_and_before_anybody_sees_what_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a kill in between would lose what was seen, and no new epoch would say so."""
    seen: list[int | None] = []
    tell = FragmentStore.fall_behind

    async def scenario(f: Fragment) -> None:
        def told(store: FragmentStore) -> None:
            tell(store)
            assert FragmentStore(store.folder, PLACE).is_behind
            seen.append(f.holding.revisions.newest)

        monkeypatch.setattr(FragmentStore, "fall_behind", told)
        await f.offer(values(1))
        await f.round(values(2))
        await f.round(values(3))
        await f.holding.end()

    run(tmp_path, scenario, behind=True)
    assert seen == [0]


def test_the_mark_goes_once_all_is_on_the_disk_and_comes_again_before_more_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(f: Fragment) -> None:
        monkeypatch.setattr(lull, "QUIET_S", 0.0)
        await f.offer(values(1))
        f.holding.catch_up()
        await f.holding.written()
        with SlowDisk(monkeypatch, FIRST) as disk:
            await f.round(values(2))
            f.holding.catch_up()
            await disk.until(lambda d: len(d.at_once) == 1)
            assert f.holding.revisions.newest == 1 and on_disk(tmp_path) == [0]
            assert f.store.is_behind, "a kill would lose what was seen"
            disk.open()
            await f.holding.written()
        assert on_disk(tmp_path) == [0, 1]
        assert not f.store.is_behind
        f.behind = False
        await f.round(values(3))
        f.holding.catch_up()
        await f.holding.written()
        assert not f.store.is_behind
        f.behind = True
        with SlowDisk(monkeypatch, "r00000003") as disk:
            await f.round(values(4))
            await disk.until(lambda d: len(d.at_once) == 1)
            assert f.store.is_behind

    run(tmp_path, scenario, behind=True)


def test_the_mark_stays_where_the_disk_has_refused_what_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        with SlowDisk(monkeypatch, FIRST) as disk:
            disk.error = OSError(errno.EIO, "Input/output error")
            await f.round(values(2))
            f.holding.catch_up()
            await disk.until(lambda d: len(d.at_once) == 1)
        with pytest.raises(StoreError, match="Input/output error"):
            await f.holding.written()
        await f.holding.end()
        assert f.store.is_behind and f.holding.revisions.newest == 1

    run(tmp_path, scenario, behind=True)


def test_a_mean_gradient_is_on_the_disk_before_anybody_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ``durability`` says: a phase that went back would have gone on in some ranks."""
    seen: list[int | None] = []
    commit = FragmentStore.commit_gradient

    async def scenario(f: Fragment) -> None:
        def committed(store: FragmentStore, *what: Any) -> None:
            commit(store, *what)
            seen.append(f.holding.gradients.newest)

        monkeypatch.setattr(FragmentStore, "commit_gradient", committed)
        await f.offer(values(1))
        for step in (1, 2):
            await f.gradient(step, values(10 + step))

    run(tmp_path, scenario, behind=True)
    assert seen == [None, 1]


def test_what_was_written_behind_is_what_was_published(tmp_path: Path) -> None:
    """Round after round, the same bytes as where each is on the disk first."""
    told: list[list[bytes]] = []
    for behind in (False, True):
        read: list[bytes] = []

        async def scenario(f: Fragment, read: list[bytes] = read) -> None:
            await f.offer(values(1))
            for seed in range(2, 6):
                await f.round(values(seed), values(10 + seed))
                read.append(await f.read(None))
            await f.holding.end()

        async def after(f: Fragment, read: list[bytes] = read) -> None:
            read += [await f.read(3), await f.read(4)]

        run(tmp_path / str(behind), scenario, behind=behind)
        run(tmp_path / str(behind), after)
        assert read[-1] == read[3] and read[-2] == read[2]
        told.append(read)
    assert told[0] == told[1]


def test_a_disk_that_refuses_is_told_at_once_and_the_store_remembers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        with SlowDisk(monkeypatch, FIRST) as disk:
            disk.error = OSError(errno.ENOSPC, "No space left on device")
            await f.round(values(2))
            await disk.until(lambda d: len(d.at_once) == 1)
        async with asyncio.timeout(20):
            while not f.faults:
                await asyncio.sleep(0.002)
        assert isinstance(f.faults[0], StoreError)
        assert "durability async at most the newest revision" in f.faults[0].message, "what is lost"
        with pytest.raises(StoreError, match="No space left"):
            await f.round(values(3))
        assert f.holding.revisions.newest == 1, "nothing more is published"
        await f.holding.end()
        assert f.store.is_behind
        assert on_disk(tmp_path) == [0]

    run(tmp_path, scenario, behind=True)


@pytest.mark.parametrize(("room", "kept"), [(3.1, 3), (2.9, 2)])
def test_an_old_file_stays_for_a_while_only_where_all_fragments_have_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: float, kept: int
) -> None:
    """``room`` is free, in files as long as this fragment's; two more are beside it."""
    folder = tmp_path / "00000"

    def left(_: Path) -> SimpleNamespace:
        size = max(path.stat().st_size for path in folder.glob("r*"))
        return SimpleNamespace(f_bavail=int(room * size), f_frsize=1)

    monkeypatch.setattr(os, "statvfs", left)
    monkeypatch.setattr(lull, "LATEST_S", 600.0)
    monkeypatch.setattr(lull, "QUIET_S", 600.0)

    async def scenario(f: Fragment) -> None:
        f.store.beside = 2 * NUMEL
        await f.offer(values(1))
        f.lull.moved()
        for seed in (2, 3):
            await f.round(values(seed))
        assert len(list(folder.glob("r*"))) == kept
        await f.holding.written()
        assert len(list(folder.glob("r*"))) == 2

    run(tmp_path, scenario)
