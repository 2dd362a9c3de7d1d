"""Checkpoints in object stores: a real S3 server in this process, and others' where they are there.

Google's and Azure's are tested where their packages and a local server are: `fake-gcs-server`, or
Azurite's `azurite-blob`, on the path.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import grpc
import numpy as np
import pytest

from syncline.launch.kept import listed
from syncline_proto.depot import PART_BYTES, Depot
from syncline_proto.errors import CheckpointDamaged, CheckpointError
from syncline_proto.settings import RunSettings
from syncline_testing import buckets
from syncline_testing.keeping import begin, copied, fetch, same, save, stored
from syncline_testing.service import code_of, flat_layout, service

pytestmark = buckets.QUIET

SIZE = 2_000_000
"""Elements: a file of 16 MB, so that it goes up in several parts."""

LAYOUT = flat_layout(SIZE, 2)


@pytest.fixture(
    scope="module",
    params=[
        "s3",
        pytest.param("gs", marks=pytest.mark.long),
        pytest.param("az", marks=pytest.mark.long),
    ],
)
def bucket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    store: str = request.param
    if store == "s3":
        pytest.importorskip("s3fs", reason="s3fs is not installed")
        server = pytest.importorskip("moto.server", reason="moto is not installed")
        with buckets.bucket(server, "kept") as url:
            yield url
        return
    package, command = buckets.ELSEWHERE[store]
    if find_spec(package) is None or shutil.which(command) is None:
        pytest.skip(f"{package} is not installed, or {command} is not on the path")
    with buckets.elsewhere(store, "kept", tmp_path_factory.mktemp(store)) as url:
        yield url


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


def test_a_run_is_kept_there_and_begins_from_there(tmp_path: Path, bucket: str) -> None:
    url = f"{bucket}/runs/first"

    async def scenario() -> None:
        async with service(tmp_path / "one", RunSettings()) as s:
            await s.members({"a": 1})
            await s.open(LAYOUT, "a")
            for fragment in range(2):
                await s.offer(values(fragment), "a", fragment=fragment)
                await s.pull(fragment=fragment, revision=0, header_only=True)
            manifest = await save(s, LAYOUT, url, 0)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await copied(s, url, 0, [0])
            assert code_of(error.value) == "CHECKPOINT" and "another name" in str(error.value)
            depot = Depot(url)
            with pytest.raises(FileExistsError):
                depot.create("checkpoint.json", b"another")
            assert await fetch(s, url, "second")
            s.run = "second"
            await begin(s, url, manifest, {})
            assert (await s.status()).fragments[1].initialised
            found = listed(f"{bucket}/runs", check=True, moved=lambda _: None)
            assert [(one.name, one.run, one.damage) for one in found] == [("first", "run", None)]
            assert found[0].bytes == manifest.bytes > 2 * 2 * 4 * SIZE
            depot.put(manifest.entries[1].file, [b"short"])
            found = listed(f"{bucket}/runs", check=False, moved=lambda _: None)
            assert manifest.entries[1].file in str(found[0].damage)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await fetch(s, url, "third")
            assert code_of(error.value) == "CHECKPOINT_DAMAGED"
            assert manifest.entries[1].file in str(error.value)
            assert not s.faults

    asyncio.run(scenario())
    for fragment in range(2):
        ours = stored(tmp_path / "one", "run", fragment, 0)
        assert same(ours, stored(tmp_path / "one", "second", fragment, 0))


def test_what_the_store_refuses_is_told_in_a_sentence(bucket: str) -> None:
    scheme = bucket.partition(":")[0]
    nobodys = Depot(f"{scheme}://nobodys-bucket/folder")
    for write in (lambda: nobodys.put("file", [b"data"]), lambda: nobodys.create("file", b"data")):
        with pytest.raises(CheckpointError) as refused:
            write()
        if scheme == "az":  # its library has no error of its own for that
            assert "cannot be written" in refused.value.message
            assert "container does not exist" in refused.value.message
            continue
        assert refused.value.message == (
            f"{scheme}://nobodys-bucket/folder cannot be written, since its bucket or folder is "
            "not there; make it, or choose another place."
        )
    with pytest.raises(CheckpointError, match="is not there"):
        Depot(f"{bucket}/none").manifest()
    assert Depot(f"{bucket}/none").sizes() == {}


def test_what_may_pass_is_to_be_tried_again_and_a_wrong_checksum_is_damage(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OddChecksumError(Exception):
        pass

    depot = Depot(f"{bucket}/odd")

    def refused(error: Exception, act: Callable[[], object]) -> CheckpointError:
        def refuses(*_: object) -> None:
            raise error

        with monkeypatch.context() as broken, pytest.raises(CheckpointError) as told:
            broken.setattr(depot, "_open", refuses)
            act()
        return told.value

    def read() -> list[bytes]:
        return list(depot.pieces("file"))

    busy = OSError(errno.EBUSY, "We encountered an error")
    assert "; try again, or check the address" in refused(busy, read).message
    writing = refused(busy, lambda: depot.put("file", [b"data"])).message
    assert writing.endswith("; try again, or choose another place.")
    forbidden = refused(PermissionError(errno.EACCES, "Forbidden"), read).message
    assert forbidden.endswith(": Forbidden; check the address, and who may use it.")
    torn = refused(OddChecksumError("did not match"), read)
    assert isinstance(torn, CheckpointDamaged) and "did not match" in torn.message


@pytest.mark.parametrize("size", [10, PART_BYTES + 10])
def test_what_breaks_off_on_its_way_is_no_file_and_changes_none(bucket: str, size: int) -> None:
    """Be it within the first part of an upload or after that."""
    depot = Depot(f"{bucket}/half-{size}")

    def breaks_off() -> Iterator[bytes]:
        yield bytes(size)
        raise CheckpointError("The disk gives no more.")

    with pytest.raises(CheckpointError, match=r"^The disk gives no more\.$"):
        depot.put("file", breaks_off())
    gc.collect()  # what is left of the upload ends with it
    assert depot.sizes() == {}
    depot.put("file", [b"whole"])
    with pytest.raises(CheckpointError, match=r"^The disk gives no more\.$"):
        depot.put("file", breaks_off())
    gc.collect()
    assert b"".join(depot.pieces("file")) == b"whole"
