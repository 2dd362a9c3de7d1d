"""What is written is what is read, and damage never passes for data."""

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from awscrt import checksums
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.data import shards as shards_room
from syncline.data.dataset import TokenDataset
from syncline.data.errors import DataError
from syncline.data.manifest import MANIFEST_FILE, Manifest, SplitInfo, TokenizerInfo
from syncline.data.shards import TokenShards, bits_per_byte, verify
from syncline.data.writer import SplitWriter, token_dtype

CALM = settings(deadline=None, max_examples=60)


def written(folder: Path, ids: np.ndarray, vocab_size: int, shard_bytes_max: int) -> Manifest:
    writer = SplitWriter(
        folder=folder, split="train", vocab_size=vocab_size, shard_bytes_max=shard_bytes_max
    )
    for part in np.array_split(ids, 3):
        writer.append(part)
    shards = writer.finish()
    manifest = Manifest(
        tokenizer=TokenizerInfo(kind="byte", fingerprint="0" * 64, vocab_size=vocab_size, eos_id=0),
        dtype="uint16" if writer.dtype.itemsize == 2 else "uint32",
        splits={
            "train": SplitInfo(documents=1, bytes=2 * len(ids), tokens=len(ids), shards=shards)
        },
    )
    (folder / MANIFEST_FILE).write_bytes(manifest.to_json())
    return manifest


@CALM
@given(
    count=st.integers(1, 60),
    length=st.integers(1, 12),
    shard_bytes_max=st.integers(4, 40),
    vocab_size=st.sampled_from([300, 1 << 16, (1 << 16) + 1]),
)
def test_sequences_tile_the_tokens_across_shards(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    length: int,
    shard_bytes_max: int,
    vocab_size: int,
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    ids = np.random.default_rng(count).integers(0, vocab_size, count).astype(np.uint32)
    manifest = written(folder, ids, vocab_size, shard_bytes_max)
    sizes = [path.stat().st_size for path in folder.glob("*.bin")]
    assert min(sizes) > 0 and max(sizes) <= shard_bytes_max
    shards = TokenShards.open(folder)
    total = shards.num_sequences(length)
    assert total == (count - 1) // length
    for index in range(total):
        start = index * length
        assert shards.sequence(index, length).tolist() == ids[start : start + length + 1].tolist()
    with pytest.raises(IndexError):
        shards.sequence(total, length)
    verify(folder, manifest, lambda _: None)


@CALM
@given(count=st.integers(1, 40), taken=st.integers(0, 50), shard_tokens=st.integers(1, 15))
def test_a_taken_tail_is_the_end_and_the_rest_is_whole(
    tmp_path_factory: pytest.TempPathFactory, count: int, taken: int, shard_tokens: int
) -> None:
    folder = tmp_path_factory.mktemp("tail")
    writer = SplitWriter(
        folder=folder, split="train", vocab_size=300, shard_bytes_max=2 * shard_tokens
    )
    ids = np.arange(count)
    writer.append(ids)
    tail = writer.take_tail(taken)
    writer.append(np.array([299]))
    shards = writer.finish()
    left = np.concatenate([np.fromfile(folder / one.file, "<u2") for one in shards])
    assert [*left[:-1], *tail] == list(ids) and left[-1] == 299
    assert len(tail) <= taken and writer.tokens == len(left)
    for one in shards:
        assert one.crc32c == f"{checksums.crc32c((folder / one.file).read_bytes()):08x}"


def test_the_stored_type_is_the_narrowest() -> None:
    assert [token_dtype(size).itemsize for size in (257, 65536, 65537)] == [2, 2, 4]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written(tmp_path, np.arange(100, dtype=np.uint32), 257, 80)
    return tmp_path


def test_a_changed_byte_is_found_and_its_shard_named(folder: Path) -> None:
    shards = TokenShards.open(folder)
    path = folder / "train-00001.bin"
    data = bytearray(path.read_bytes())
    data[17] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"{path} is damaged: its CRC-32C is"):
        verify(folder, shards.manifest, lambda _: None)


def test_a_cut_or_missing_shard_is_named_on_opening(folder: Path) -> None:
    path = folder / "train-00002.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=f"{path} is damaged: it has 38 bytes instead of 40"):
        TokenShards.open(folder)
    path.unlink()
    with pytest.raises(DataError, match=f"cannot read {path}"):
        TokenShards.open(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "of format version 2, this program reads 1"),
        ({"format": "other"}, "is damaged: format"),
        ({"dtype": "float32"}, "is damaged: dtype"),
        ({"splits": 3}, "is damaged: splits"),
    ],
)
def test_a_strange_manifest_is_refused(
    folder: Path, change: dict[str, object], message: str
) -> None:
    path = folder / MANIFEST_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        TokenShards.open(folder)


@pytest.mark.parametrize("name", ["../train-00000.bin", "/etc/passwd.bin", "a/b.bin"])
def test_a_manifest_cannot_name_files_elsewhere(folder: Path, name: str) -> None:
    path = folder / MANIFEST_FILE
    path.write_text(path.read_text().replace("train-00000.bin", name))
    with pytest.raises(DataError, match=r"damaged: splits.train.shards.0.file"):
        TokenShards.open(folder)


def test_counts_that_disagree_are_refused(folder: Path) -> None:
    path = folder / MANIFEST_FILE
    described = json.loads(path.read_text())
    described["splits"]["train"]["tokens"] += 1
    path.write_text(json.dumps(described))
    with pytest.raises(DataError, match="the shards of train do not add up"):
        TokenShards.open(folder)


def test_other_folders_and_splits_are_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not prepared data"):
        TokenShards.open(tmp_path / "nothing")
    with pytest.raises(DataError, match="no split 'test'; it has train"):
        TokenShards.open(folder, "test")


def test_opened_shards_are_maps_of_their_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read-only, and never read into memory: a corpus may be larger than that."""
    opened: list[np.ndarray] = []
    whole = shards_room._mapped

    def seen(*given: Any) -> np.ndarray:
        opened.append(whole(*given))
        return opened[-1]

    monkeypatch.setattr(shards_room, "_mapped", seen)
    TokenShards.open(folder)
    assert len(opened) == len(list(folder.glob("*.bin"))) > 0
    assert all(isinstance(one, np.memmap) and not one.flags.writeable for one in opened)


def test_the_dataset_speaks_hugging_face(folder: Path) -> None:
    dataset = TokenDataset.open(folder, length=8)
    assert len(dataset) == 12
    item = dataset[3]
    assert item["input_ids"].dtype == torch.int64
    assert item["input_ids"].tolist() == item["labels"].tolist() == list(range(24, 32))
    item["labels"][0] = -100
    assert item["input_ids"][0] == 24
    with pytest.raises(DataError, match="100 tokens, too few for one sequence of 100"):
        TokenDataset.open(folder, length=100)


def test_a_pickled_dataset_maps_the_files_again(folder: Path) -> None:
    dataset = TokenDataset.open(folder, length=8)
    data = pickle.dumps(dataset)
    assert len(data) < 1000
    assert torch.equal(pickle.loads(data)[5]["input_ids"], dataset[5]["input_ids"])


def test_bits_per_byte_do_not_depend_on_the_tokenizer(folder: Path) -> None:
    # A uniform guess over 256 bytes costs 8 bits each; over pairs of bytes, 16 for each pair.
    assert bits_per_byte(math.log(256), 1.0) == pytest.approx(8.0)
    assert bits_per_byte(math.log(65536), 2.0) == pytest.approx(8.0)
    assert TokenShards.open(folder).bytes_per_token == 2.0
