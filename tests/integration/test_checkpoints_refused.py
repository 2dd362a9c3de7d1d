"""A checkpoint that cannot be: damaged, called off, in no place of ours. Nothing else is harmed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import grpc
import pytest
from structlog.testing import capture_logs

from syncline.launch.kept import listed
from syncline_proto.reports import EventIn
from syncline_proto.v1 import checkpoints_pb2
from syncline_sync import checkpoints, copies
from syncline_sync.aside import sweep_aside
from syncline_sync.copies import CALLS_MAX, COPIES
from syncline_sync.pins import sweep_pins
from syncline_sync.residence import COMMIT_BYTES
from syncline_sync.seating import folder_of, take_seat
from syncline_testing.keeping import (
    FRAGMENTS,
    LAYOUT,
    MEMBERS,
    at_work,
    begin,
    code,
    copied,
    fetch,
    round_of,
    save,
)
from syncline_testing.service import Service, code_of
from syncline_testing.slow_disk import LIMIT_S, SlowDisk

OTHER_DISK = Path("/dev/shm")
"""In memory, on most machines."""


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what other threads bring about."""
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("harm", ["flipped", "cut", "missing", "manifest"])
def test_a_damaged_checkpoint_is_named_and_nothing_is_restored(tmp_path: Path, harm: str) -> None:
    url = tmp_path / "kept" / "hurt"

    async def scenario() -> None:
        async with at_work(tmp_path / "store") as s:
            manifest = await save(s, LAYOUT, str(url), 0)
            path = url / ("checkpoint.json" if harm == "manifest" else manifest.entries[1].file)
            data = bytearray(path.read_bytes())
            if harm == "missing":
                path.unlink()
            else:
                data[len(data) // 2] ^= 1
                path.write_bytes(data[:-5] if harm == "cut" else data)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await fetch(s, str(url), "hurt")
            said = str(error.value.details())
            assert path.name in said
            assert harm != "cut" or f"{len(data) - 5} bytes where the manifest says" in said
            assert code(error) == ("CHECKPOINT" if harm == "missing" else "CHECKPOINT_DAMAGED")
            assert not (tmp_path / "store" / "runs" / "hurt").exists()
            assert not list((tmp_path / "store" / "restoring").rglob("*.safetensors"))
            s.run = "hurt"
            await begin(s, str(url), manifest, MEMBERS)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await s.open(LAYOUT, "a")
            assert code(error) == "STORE_DAMAGED", "no replica begins it from its own parameters"
            assert "restore the checkpoint" in str(error.value.details())
            assert not s.faults, "the service goes on"

    asyncio.run(scenario())


def test_what_is_no_place_for_checkpoints_is_refused(tmp_path: Path) -> None:
    urls = {
        "kept/one": "INVALID_REQUEST",
        "/kept/../etc/one": "INVALID_REQUEST",
        "http://127.0.0.1:1/one": "INVALID_REQUEST",
        "simplecache::s3://b/one": "INVALID_REQUEST",
        str(tmp_path / "Not-A-Name"): "INVALID_REQUEST",
        str(tmp_path / "file" / "one"): "CHECKPOINT",
        str(tmp_path / "file"): "CHECKPOINT",
        str(tmp_path / "loop" / "one"): "CHECKPOINT",
        str(tmp_path / "store" / "runs" / "one"): "CONFIG",
        str(tmp_path / "link" / "one"): "CONFIG",
    }
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "link").symlink_to(tmp_path / "store")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    async def scenario() -> None:
        async with at_work(tmp_path / "store") as s:
            why: list[str] = []
            for url, expected in urls.items():
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await copied(s, url, 0, FRAGMENTS)
                assert code(error) == expected, url
                why += [str(error.value.details())] if expected == "CHECKPOINT" else []
            for fragments in ([], [0, 0], [2]):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await copied(s, str(tmp_path / "kept" / "one"), 0, fragments)
                assert code(error) == "INVALID_REQUEST"
                assert "sync service's; OpenRun says which." in str(error.value.details())
            assert not s.faults
            told = [one for one in s.reports if isinstance(one, EventIn)]
            assert not told, "that a save has failed is for who asked all services for it"
            in_the_way, is_file, is_loop = why
            check = "Not a directory; check the address, and who may use it."
            assert in_the_way == f"{tmp_path}/file/one: {check}"
            assert "it cannot be written (File exists); choose another place." in is_file
            assert "Too many levels of symbolic links" in is_loop
            assert not list((tmp_path / "store" / "pinned").iterdir())

    asyncio.run(scenario())


def test_a_save_that_is_called_off_lets_go_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "kept" / "one"
    pinned = tmp_path / "store" / "pinned"

    async def scenario() -> None:
        async with at_work(tmp_path / "store") as s:
            await save(s, LAYOUT, str(tmp_path / "kept" / "other"), 0)
            request = checkpoints_pb2.SaveFragmentsRequest(
                run="run", url=str(place), revision=0, fragments=FRAGMENTS
            )
            with SlowDisk(monkeypatch, str(place)) as disk:  # a store that takes its time
                call = s.checkpoints.SaveFragments(request, timeout=60)
                await anext(aiter(call))
                await disk.until(lambda disk: len(disk.at_once) == len(FRAGMENTS))
                assert len(list(pinned.rglob("*.safetensors"))) == 2
                await round_of(s, 0)  # the run goes on meanwhile
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call.code()
                    await anext(aiter(call))
            await until(lambda: not list(pinned.iterdir()))
            assert not list(place.glob("*.half"))
            await save(s, LAYOUT, str(place), 0)
            assert not s.faults

    asyncio.run(scenario())


def test_a_save_that_fails_beside_one_that_is_sealed_takes_nothing_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write the same files, since they copy the same revision."""
    url = str(tmp_path / "kept" / "one")

    async def scenario() -> None:
        async with at_work(tmp_path / "store") as s:
            request = checkpoints_pb2.SaveFragmentsRequest(
                run="run", url=url, revision=0, fragments=[0]
            )
            with SlowDisk(monkeypatch, url) as disk:
                call = s.checkpoints.SaveFragments(request, timeout=60)
                await anext(aiter(call))
                await disk.until(lambda disk: len(disk.at_once) == 1)
                disk.words = ()
                await save(s, LAYOUT, url, 0)
                disk.error = OSError(28, "No space left on device")
                disk.open()
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    while True:
                        await anext(aiter(call))
                assert code(error) == "CHECKPOINT"
            (kept,) = listed(str(tmp_path / "kept"), check=True, moved=lambda _: None)
            assert kept.damage is None
            assert not s.faults

    asyncio.run(scenario())


def test_the_folder_of_several_services_is_no_place_for_checkpoints_either(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    take_seat(tmp_path / "data", None, 2)
    root = folder_of(tmp_path / "data", 0)

    async def scenario() -> None:
        async with at_work(root) as s:
            for place, expected in (("data/sync-1", "CONFIG"), ("data-2", "")):
                try:
                    await save(s, LAYOUT, str(tmp_path / place / "one"), 0)
                    assert not expected
                except grpc.aio.AioRpcError as error:
                    assert code_of(error) == expected
                    assert "in the data folder of a sync service" in str(error.details())

    asyncio.run(scenario())


def test_a_store_that_hangs_keeps_its_calls_and_their_names_and_nothing_else(
    tmp_path: Path,
) -> None:
    """A call counts until its thread is back, though its caller is gone."""
    place = tmp_path / "kept" / "one"

    async def scenario() -> None:
        async with at_work(tmp_path / "store") as s:
            await save(s, LAYOUT, str(place), 0)
            manifest = place / "checkpoint.json"
            whole = manifest.read_bytes()
            manifest.unlink()
            os.mkfifo(manifest)  # to open it for reading waits for who writes
            ended = 0
            async with asyncio.timeout(60):
                while await _hung(s, f"r-{ended}", str(place)) != "OVERLOADED":
                    ended += 1  # some of them, perhaps, before the service has heard of them
            assert ended >= CALLS_MAX
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await copied(s, str(tmp_path / "kept" / "two"), 0, FRAGMENTS)
            assert code(error) == "OVERLOADED"
            await round_of(s, 0)  # the run goes on
            with manifest.open("wb"):  # and now it answers, and is no pipe for who is late
                manifest.unlink()
                manifest.write_bytes(whole)
            async with asyncio.timeout(30):
                while not await _taken(s, str(tmp_path / "kept" / "two")):
                    await asyncio.sleep(0.05)
            assert not s.faults

    asyncio.run(scenario())


def test_a_store_that_hangs_amid_its_copies_holds_up_no_other_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "STILL_S", 0.5)
    monkeypatch.setattr(copies, "TELL_S", 0.1)

    async def scenario() -> None:
        async with at_work(tmp_path / "store") as s:
            manifest = await save(s, LAYOUT, str(tmp_path / "one"), 0)
            files = [tmp_path / "one" / entry.file for entry in manifest.entries]
            assert len(files) >= COPIES
            for file in files:
                file.unlink()
                os.mkfifo(file)  # to open it for reading waits for who writes
            restoring = asyncio.create_task(fetch(s, str(tmp_path / "one"), "next"))
            said = "a checkpoint's store stands still"
            async with asyncio.timeout(30):
                while not (told := [line for line in logs if line["event"] == said]):
                    await asyncio.sleep(0.05)
            await save(s, LAYOUT, str(tmp_path / "two"), 0)
            assert not restoring.done()
            assert told[0]["left"] == f"run next is not restored from {tmp_path / 'one'}"
            for file in files:  # cut short: nothing comes
                os.close(os.open(file, os.O_WRONLY))
            with pytest.raises(grpc.aio.AioRpcError):
                await restoring
            assert len([line for line in logs if line["event"] == said]) == 1
            assert not s.faults

    with capture_logs() as logs:
        asyncio.run(scenario())


async def _hung(s: Service, run: str, url: str) -> str:
    """What becomes of a call whose caller waits for a moment only: its code, if it has one."""
    request = checkpoints_pb2.RestoreFragmentsRequest(run=run, url=url)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await anext(aiter(s.checkpoints.RestoreFragments(request, timeout=0.2)))
    if error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ""
    return code(error)


async def _taken(s: Service, url: str) -> bool:
    """Whether a checkpoint is taken, or else refused since there are too many calls."""
    try:
        await save(s, LAYOUT, url, 1)
        return True
    except grpc.aio.AioRpcError as error:
        assert code_of(error) == "OVERLOADED"
        return False


def test_a_second_restore_of_a_name_is_told_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with at_work(tmp_path / "store") as s:
            await save(s, LAYOUT, url := str(tmp_path / "kept" / "one"), 0)
            with SlowDisk(monkeypatch, "restoring") as disk:
                first = asyncio.create_task(fetch(s, url, "next"))
                await disk.until(lambda disk: bool(disk.at_once))
                with pytest.raises(grpc.aio.AioRpcError, match="is under way") as error:
                    await fetch(s, url, "next")
                assert code(error) == "RUN_CONFLICT"
                disk.open()
                assert sorted(await first) == list(FRAGMENTS)

    asyncio.run(scenario())


def test_a_restore_is_not_swept_by_another_that_began_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose sweep is slow knows of those that have begun meanwhile."""
    may_sweep = threading.Event()
    begun: list[Path] = []
    swept: list[Path] = []

    def slow(root: Path, under_way: Collection[str]) -> None:
        begun.append(root)
        if len(begun) == 1:
            may_sweep.wait(LIMIT_S)
        sweep_aside(root, under_way)
        swept.append(root)

    async def scenario() -> None:
        async with at_work(tmp_path / "store") as s:
            await save(s, LAYOUT, url := str(tmp_path / "kept" / "one"), 0)
            monkeypatch.setattr(checkpoints, "sweep_aside", slow)
            with SlowDisk(monkeypatch, "/runs/second/0000") as disk:
                first = asyncio.create_task(fetch(s, url, "first"))
                await until(lambda: len(begun) == 1)
                second = asyncio.create_task(fetch(s, url, "second"))
                await disk.until(lambda disk: bool(disk.at_once))
                may_sweep.set()
                await until(lambda: len(swept) == 2)
                disk.open()
                assert sorted(await second) == sorted(await first) == list(FRAGMENTS)
            assert not s.faults

    asyncio.run(scenario())


def test_what_a_kill_left_pinned_is_swept(tmp_path: Path) -> None:
    (tmp_path / "pinned" / "0123").mkdir(parents=True)
    (tmp_path / "pinned" / "0123" / "00000.safetensors").write_bytes(b"held")
    sweep_pins(tmp_path)
    assert not (tmp_path / "pinned").exists()


def test_a_restore_leaves_the_runs_at_work_the_room_for_their_next_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "kept" / "one")

    async def scenario() -> None:
        async with at_work(tmp_path / "store") as s:
            whole = await save(s, LAYOUT, url, 0)
            twice = COPIES * max(entry.bytes for entry in whole.entries)
            room = whole.bytes + twice + sum(COMMIT_BYTES * f.numel for f in LAYOUT.fragments)
            disk = SimpleNamespace(f_bavail=room - 1, f_frsize=1)
            monkeypatch.setattr(os, "statvfs", lambda path: disk)
            with pytest.raises(grpc.aio.AioRpcError, match="the runs here go on") as error:
                await fetch(s, url, "another")
            assert code(error) == "CHECKPOINT"
            assert not (tmp_path / "store" / "restoring").exists()
            disk.f_bavail += 1
            await fetch(s, url, "another")
            assert not s.faults

    asyncio.run(scenario())


def test_so_does_a_checkpoint_on_the_stores_own_disk_and_on_another_none_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with at_work(tmp_path / "store") as s:
            whole = await save(s, LAYOUT, str(tmp_path / "kept" / "one"), 0)
            room = whole.bytes + sum(COMMIT_BYTES * f.numel for f in LAYOUT.fragments)
            disk = SimpleNamespace(f_bavail=room - 1, f_frsize=1)
            monkeypatch.setattr(os, "statvfs", lambda path: disk)
            with pytest.raises(grpc.aio.AioRpcError, match="is not saved. It takes") as error:
                await save(s, LAYOUT, str(tmp_path / "kept" / "two"), 0)
            assert code(error) == "CHECKPOINT"
            assert not (tmp_path / "kept" / "two").exists()
            if OTHER_DISK.exists() and OTHER_DISK.stat().st_dev != tmp_path.stat().st_dev:
                with TemporaryDirectory(dir=OTHER_DISK) as elsewhere:
                    await save(s, LAYOUT, f"{elsewhere}/two", 0)
            disk.f_bavail += 1
            await save(s, LAYOUT, str(tmp_path / "kept" / "two"), 0)
            assert not s.faults

    asyncio.run(scenario())
