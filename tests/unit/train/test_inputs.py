"""Who reads what: slices are disjoint whatever the ranks, and a stream goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncline.data import TokenDataset
from syncline.data.tokenizer import train_bpe
from syncline.train.folder import prepared_folder
from syncline.train.inputs import Feed
from syncline.train.ranks import RankGroup
from syncline.train.sections import DataSection
from syncline_proto.errors import SynclineError
from syncline_testing.training import tiny_data

LENGTH = 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("data") / "tokens")


def feed(folder: Path, ordinal: int, replicas: int, rank: int = 0, world: int = 1) -> Feed:
    section = DataSection(path=folder, sequence_length=LENGTH)
    ranks = RankGroup(index=rank, count=world)
    dataset = TokenDataset.open(folder, length=LENGTH)
    return Feed.open(dataset, section, ordinal=ordinal, replicas=replicas, ranks=ranks)


def rows(of: Feed, micro_batch: int, batches: int) -> list[tuple[int, ...]]:
    taken = [of.next(micro_batch)["input_ids"] for _ in range(batches)]
    return [tuple(row) for batch in taken for row in batch.tolist()]


def test_replicas_of_different_size_read_different_sequences(folder: Path) -> None:
    one = rows(feed(folder, 0, 2), micro_batch=4, batches=5)
    two = [
        row
        for rank in (0, 1)
        for row in rows(feed(folder, 1, 2, rank, world=2), micro_batch=2, batches=5)
    ]
    assert len({*one, *two}) == 40


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_deal_what_one_process_would_read(folder: Path, world: int) -> None:
    alone = rows(feed(folder, 0, 1), micro_batch=8, batches=3)
    dealt = [
        rows(feed(folder, 0, 1, rank, world), micro_batch=8 // world, batches=3)
        for rank in range(world)
    ]
    assert sorted(alone) == sorted(row for part in dealt for row in part)


def test_one_more_replica_than_expected_reads_in_another_order(folder: Path) -> None:
    first, extra = (rows(feed(folder, ordinal, 2), 4, 4) for ordinal in (0, 2))
    assert first != extra


def test_a_joiner_starts_where_the_others_are(folder: Path) -> None:
    there, joiner = feed(folder, 1, 2), feed(folder, 1, 2)
    rows(there, micro_batch=3, batches=7)
    joiner.skip_to(3 * 7 * LENGTH)
    assert rows(joiner, 3, 4) == rows(there, 3, 4)


def test_sources_are_prepared_once_and_found_again(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A line of text that is worth a model.\n" * 200)
    section = DataSection(source=[str(text)], cache=tmp_path / "cache", sequence_length=32)
    folder = prepared_folder(section)
    made_at = (folder / "manifest.json").stat().st_mtime_ns
    assert prepared_folder(section) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == made_at
    text.write_text("Another text.\n" * 200)
    assert prepared_folder(section) != folder


def test_a_tokenizer_that_was_trained_again_is_another(tmp_path: Path) -> None:
    """Whatever its path, and the size of its file."""
    text = tmp_path / "text.txt"
    text.write_text("A line of text that is worth a model.\n" * 200)
    path = tmp_path / "tokenizer.json"
    section = DataSection(source=[str(text)], tokenizer=str(path), cache=tmp_path / "cache")
    folders = list[Path]()
    for of in ("abab", "cdcd", "abab"):
        train_bpe([of], 258, progress=False).save(tmp_path)
        folders.append(prepared_folder(section))
        assert (folders[-1] / path.name).read_bytes() == path.read_bytes()
    assert folders[0] == folders[2] != folders[1]


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    section = DataSection(source=[str(tmp_path / "no.txt")], cache=tmp_path)
    with pytest.raises(SynclineError, match=r"no\.txt"):
        prepared_folder(section)
