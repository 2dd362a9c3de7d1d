"""Data that lies elsewhere: fetched once, whole, and checked."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from syncline.data import cache as room
from syncline.data.cache import HALF, cached, manifest_at, tokenizer_at
from syncline.data.errors import DataError
from syncline.data.manifest import MANIFEST_FILE
from syncline.data.prepare import prepare
from syncline.data.shards import TokenShards
from syncline.data.tokenizer import TOKENIZER_FILE
from syncline.train.folder import prepared_folder, vocabulary_of
from syncline.train.sections import DataSection
from syncline_proto.depot import Depot
from syncline_proto.errors import CheckpointError, ConfigError, Unreachable


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Prepared data on a disk that all machines see."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number} of a text\n" for number in range(500)))
    folder = tmp_path / "shared"
    prepare([str(text)], folder, "byte", 0.0, progress=False)
    return folder


def test_the_copy_gives_the_same_sequences(shared: Path, tmp_path: Path) -> None:
    copy = cached(str(shared), tmp_path / "cache")
    here, there = (TokenShards.open(folder) for folder in (copy, shared))
    assert here.manifest == there.manifest
    for index in range(here.num_sequences(64)):
        assert np.array_equal(here.sequence(index, 64), there.sequence(index, 64))
    assert (copy / TOKENIZER_FILE).read_bytes() == (shared / TOKENIZER_FILE).read_bytes()
    assert not list(copy.glob(f"*{HALF}"))


def test_a_job_reads_it_by_its_address(shared: Path, tmp_path: Path) -> None:
    section = DataSection(url=str(shared), cache=tmp_path / "cache", sequence_length=64)
    assert vocabulary_of(section).vocab_size == 257
    assert not (tmp_path / "cache").exists(), "only the manifest is asked for"
    folder = prepared_folder(section)
    assert folder.parent == tmp_path / "cache" and TokenShards.open(folder).tokens > 0
    with pytest.raises(ValueError, match="one of path"):
        DataSection(url=str(shared), source=["builtin"])


def test_what_is_here_is_not_fetched_again(shared: Path, tmp_path: Path) -> None:
    copy = cached(str(shared), tmp_path / "cache")
    for shard in shared.glob("*.bin"):
        shard.unlink()
    assert cached(str(shared), tmp_path / "cache") == copy


def test_a_fetch_that_was_interrupted_goes_on(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = cached(str(shared), tmp_path / "cache")
    (shard,) = copy.glob("train*.bin")
    kept = shard.stat().st_ino
    (copy / MANIFEST_FILE).unlink()
    (copy / f"train-00000.bin.ab{HALF}").write_bytes(b"half")

    def fetched_again(*_: object) -> None:
        pytest.fail("it is here")

    monkeypatch.setattr(room, "_fetch_shard", fetched_again)
    assert cached(str(shared), tmp_path / "cache") == copy
    assert shard.stat().st_ino == kept
    assert not list(copy.glob(f"*{HALF}"))


def test_damage_is_named_and_nothing_of_it_is_kept(shared: Path, tmp_path: Path) -> None:
    (shard,) = shared.glob("train*.bin")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match=r"train-00000\.bin is damaged: .*CRC-32C"):
        cached(str(shared), tmp_path / "cache")
    shard.write_bytes(data[:-2])
    with pytest.raises(DataError, match="instead of"):
        cached(str(shared), tmp_path / "cache")
    shard.unlink()
    with pytest.raises(DataError, match="is missing"):
        cached(str(shared), tmp_path / "cache")
    (folder,) = (tmp_path / "cache").glob("shards-*")
    assert not (folder / MANIFEST_FILE).exists() and not list(folder.glob("train*"))


@pytest.mark.parametrize(
    ("url", "error", "why"),
    [
        ("/nowhere/at/all", DataError, "no readable prepared data at /nowhere"),
        ("relative/folder", ConfigError, "no absolute path"),
        ("ftp://host/folder", ConfigError, "nor one of"),
    ],
)
def test_an_address_without_data_is_told(
    tmp_path: Path, url: str, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        cached(url, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = type(shutil.disk_usage(tmp_path))(100, 100, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(DataError, match=r"needs 0\.00 GB more .*data\.cache"):
        cached(str(shared), tmp_path / "cache")


def test_a_store_that_breaks_off_is_asked_again(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room.Event, "wait", lambda self, timeout=None: False)
    pieces, asked = Depot.pieces, 0

    def breaks_off(self: Depot, name: str):  # type: ignore[no-untyped-def]
        nonlocal asked
        if name.startswith("train"):
            asked += 1
            yield b"so far"
            if asked < limit:
                raise CheckpointError(f"{name}: the connection is gone.")
            return
        yield from pieces(self, name)

    def then_whole(self: Depot, name: str):  # type: ignore[no-untyped-def]
        return breaks_off(self, name) if asked < limit - 1 else pieces(self, name)

    limit = 3
    monkeypatch.setattr(Depot, "pieces", then_whole)
    assert (cached(str(shared), tmp_path / "cache") / MANIFEST_FILE).is_file()
    asked, limit = 0, 100
    with pytest.raises(Unreachable, match="tried 5 times"):
        cached(str(shared), tmp_path / "other")


def test_of_many_who_want_it_one_fetches(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    fetch = room._fetch_shard

    def counted(depot: Depot, info: room.ShardInfo, *rest: object) -> None:
        fetched.append(info.file)
        fetch(depot, info, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(room, "_fetch_shard", counted)
    folders: list[Path] = []
    many = [
        Thread(target=lambda: folders.append(cached(str(shared), tmp_path / "cache")))
        for _ in range(4)
    ]
    for one in many:
        one.start()
    for one in many:
        one.join(60)
    assert len(set(folders)) == 1 and len(folders) == 4
    assert sorted(fetched) == sorted(path.name for path in shared.glob("*.bin"))


def test_a_tokenizer_is_had_without_the_shards(shared: Path, tmp_path: Path) -> None:
    folder = tokenizer_at(str(shared), tmp_path / "cache")
    assert (folder / TOKENIZER_FILE).is_file() and not list(folder.glob("*.bin"))
    assert cached(str(shared), tmp_path / "cache") == folder
    assert manifest_at(str(shared)) == TokenShards.open(folder).manifest
