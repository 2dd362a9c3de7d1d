"""A checkpoint that cannot be: damaged, called off, in no place of ours. Nothing else is harmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from syncline.launch.kept import listed
from syncline_proto.v1 import checkpoints_pb2
from syncline_sync.pins import sweep_pins
from syncline_testing.keeping import (
    FRAGMENTS,
    LAYOUT,
    MEMBERS,
    SETTINGS,
    begin,
    code,
    copied,
    fetch,
    round_of,
    save,
    started,
)
from syncline_testing.service import service
from syncline_testing.slow_disk import SlowDisk


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what other threads bring about."""
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("harm", ["flipped", "cut", "missing", "manifest"])
def test_a_damaged_checkpoint_is_named_and_nothing_is_restored(tmp_path: Path, harm: str) -> None:
    url = tmp_path / "kept" / "hurt"

    async def scenario() -> None:
        async with service(tmp_path / "store", SETTINGS) as s:
            await started(s)
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
            assert path.name in str(error.value.details())
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
    }
    (tmp_path / "file").write_text("in the way")

    async def scenario() -> None:
        async with service(tmp_path / "store", SETTINGS) as s:
            await started(s)
            for url, expected in urls.items():
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await copied(s, url, 0, FRAGMENTS)
                assert code(error) == expected, url
            for fragments in ([], [0, 0], [2]):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await copied(s, str(tmp_path / "kept" / "one"), 0, fragments)
                assert code(error) == "INVALID_REQUEST"
            assert not s.faults
            assert not list((tmp_path / "store" / "pinned").iterdir())

    asyncio.run(scenario())


def test_a_save_that_is_called_off_lets_go_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "kept" / "one"
    pinned = tmp_path / "store" / "pinned"

    async def scenario() -> None:
        async with service(tmp_path / "store", SETTINGS) as s:
            await started(s)
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
        async with service(tmp_path / "store", SETTINGS) as s:
            await started(s)
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


def test_what_a_kill_left_pinned_is_swept(tmp_path: Path) -> None:
    (tmp_path / "pinned" / "0123").mkdir(parents=True)
    (tmp_path / "pinned" / "0123" / "00000.safetensors").write_bytes(b"held")
    sweep_pins(tmp_path)
    assert not (tmp_path / "pinned").exists()
