"""A prepared folder is whole and true, or it is not there."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from syncline.data import prepare as room
from syncline.data.errors import DataError
from syncline.data.manifest import read_manifest
from syncline.data.prepare import inspect, prepare
from syncline.data.readers import Document
from syncline.data.shards import TokenShards
from syncline.data.split import HELD_OUT, TRAIN, split_of, unit_hash
from syncline.data.summary import Summary
from syncline.data.tokenizer import load_tokenizer

WORDS = "sphinx of black quartz, judge my vow: naïve façade\n"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    with path.open("w") as file:
        for number in range(400):
            file.write(json.dumps({"text": f"{number} {WORDS}" * (1 + number % 3)}) + "\n")
    return path


def all_tokens(folder: Path, split: str) -> np.ndarray:
    shards = TokenShards.open(folder, split)
    return shards.sequence(0, shards.tokens - 1) if shards.tokens else np.empty(0, np.uint16)


def documents_of(folder: Path, split: str) -> list[str]:
    """The split's documents, decoded again."""
    tokenizer = load_tokenizer(folder)
    ids = all_tokens(folder, split)
    assert ids[-1] == tokenizer.eos_id
    ends = np.flatnonzero(ids == tokenizer.eos_id)
    return [tokenizer.decode(part) for part in np.split(ids, ends + 1)[:-1]]


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("tokenizer", ["byte", "bpe:300"])
def test_every_document_comes_back_from_its_split(
    lines: Path, tmp_path: Path, tokenizer: str
) -> None:
    out = tmp_path / "out"
    summary = prepare([lines], out, tokenizer, progress=False, shard_bytes_max=10_000)
    wanted: dict[str, list[str]] = {TRAIN: [], HELD_OUT: []}
    for number, line in enumerate(lines.read_text().splitlines(), start=1):
        wanted[split_of(f"lines.jsonl:{number}", 0.05)].append(json.loads(line)["text"])
    for split in summary.splits:
        assert documents_of(out, split.name) == wanted[split.name]
        assert split.documents == len(wanted[split.name]) > 5
        assert split.bytes == sum(len(text.encode()) for text in wanted[split.name])
        assert TokenShards.open(out, split.name).bytes_per_token == split.bytes_per_token
    assert [split.name for split in summary.splits] == [TRAIN, HELD_OUT]
    assert summary.splits[0].shards > 1
    assert json.loads(json.dumps(summary.as_dict()))["vocab_size"] == summary.vocab_size
    checked = inspect(out, progress=False)
    assert (checked.fingerprint, checked.splits) == (summary.fingerprint, summary.splits)


def test_the_same_sources_give_the_same_bytes(lines: Path, tmp_path: Path) -> None:
    made = [
        prepare([lines], tmp_path / str(number), "bpe:280", progress=False) for number in range(2)
    ]
    assert made[0].fingerprint == made[1].fingerprint
    assert (tmp_path / "0" / "train-00000.bin").read_bytes() == (
        tmp_path / "1" / "train-00000.bin"
    ).read_bytes()


def test_the_builtin_corpus_is_prepared(tmp_path: Path) -> None:
    summary = prepare(["builtin"], tmp_path / "out", progress=False)
    train, held_out = summary.splits
    assert 0.02 < held_out.documents / (train.documents + held_out.documents) < 0.09
    assert train.bytes + held_out.bytes > 5_000_000
    assert train.tokens == train.bytes + train.documents
    inspect(tmp_path / "out", progress=False)


@pytest.mark.parametrize("name", [f"{number}.txt" for number in range(8)])
def test_one_text_file_still_has_something_held_out(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(WORDS * 100, encoding="utf-8")
    train, held_out = prepare(
        [path], tmp_path / "out", held_out_fraction=0.1, progress=False
    ).splits
    assert held_out.bytes == pytest.approx(0.1 * path.stat().st_size, abs=2)
    assert train.bytes + held_out.bytes == path.stat().st_size
    # Cut wherever it was, nothing is lost.
    data = [all_tokens(tmp_path / "out", split) for split in (TRAIN, HELD_OUT)]
    together = b"".join(bytes(ids[ids < 256].astype(np.uint8)) for ids in data)
    assert together == path.read_bytes()


@pytest.mark.parametrize("tokenizer", ["byte", "bpe:260"])
def test_a_name_that_hashes_to_the_held_out_split_is_turned_round(
    tmp_path: Path, tokenizer: str
) -> None:
    name = next(f"{number}.txt" for number in range(1000) if unit_hash(f"{number}.txt") < 0.1)
    path = tmp_path / name
    path.write_text("xy " * 1000)
    summary = prepare([path], tmp_path / "out", tokenizer, held_out_fraction=0.1, progress=False)
    train, held_out = summary.splits
    assert summary.vocab_size == (257 if tokenizer == "byte" else 259)
    assert train.bytes + held_out.bytes == 3000
    assert held_out.bytes == pytest.approx(300, abs=3)


def test_the_pieces_of_a_long_file_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.data.readers.WHOLE_BYTES_MAX", 1000)
    monkeypatch.setattr("syncline.data.readers.PIECE_BYTES", 500)
    path = tmp_path / "long.txt"
    path.write_text("".join(f"{number:09d}\n" for number in range(2000)))
    summary = prepare([path], tmp_path / "out", held_out_fraction=0.2, progress=False)
    found = [text for split in (TRAIN, HELD_OUT) for text in documents_of(tmp_path / "out", split)]
    # Each stretch that is joined is consecutive in the file, and each line is there once.
    assert all(text in path.read_text() for text in found)
    assert sorted("".join(found).split()) == path.read_text().split()
    assert min(split.bytes for split in summary.splits) > 0
    assert sum(split.documents for split in summary.splits) == len(found)


def test_nothing_held_out_on_request(lines: Path, tmp_path: Path) -> None:
    train, held_out = prepare(
        [lines], tmp_path / "out", held_out_fraction=0.0, progress=False
    ).splits
    assert (train.documents, held_out.tokens) == (400, 0)
    with pytest.raises(DataError, match="'held-out' .* is empty"):
        _ = TokenShards.open(tmp_path / "out", HELD_OUT).bytes_per_token


@pytest.mark.parametrize("tokenizer", ["byte", "bpe:300"])
def test_a_malformed_line_leaves_nothing_behind(
    lines: Path, tmp_path: Path, tokenizer: str
) -> None:
    with lines.open("a") as file:
        file.write("{broken\n")
    with pytest.raises(DataError, match=f"{lines}, line 401 is not valid JSON"):
        prepare([lines], tmp_path / "out", tokenizer, progress=False)
    assert not (tmp_path / "out").exists() and not left_behind(tmp_path)


def test_ctrl_c_leaves_nothing_behind(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = room._documents

    def interrupted(*args: object) -> Iterator[Document]:
        for number, document in enumerate(real(*args)):  # type: ignore[arg-type]
            if number == 200:
                assert left_behind(tmp_path)
                raise KeyboardInterrupt
            yield document

    monkeypatch.setattr(room, "_documents", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare([lines], tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists() and not left_behind(tmp_path)


def test_an_existing_folder_is_only_replaced_on_request(lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = prepare([lines], out, progress=False)
    with pytest.raises(DataError, match=f"{out} exists already; .*, or --overwrite"):
        prepare([lines], out, "bpe:280", progress=False)
    assert inspect(out, progress=False).fingerprint == first.fingerprint
    prepare([lines], out, "bpe:280", overwrite=True, progress=False)
    assert inspect(out, progress=False).vocab_size == 280
    assert not left_behind(tmp_path)


def test_a_failed_replacement_keeps_the_old_folder(lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = prepare([lines], out, progress=False)
    lines.write_text("{broken\n")
    with pytest.raises(DataError):
        prepare([lines], out, overwrite=True, progress=False)
    assert inspect(out, progress=False).fingerprint == first.fingerprint


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("name", "said"),
    [("letter.txt", "dear"), ("manifest.json", '{"name": "an app"}'), ("manifest.json", "[]")],
)
def test_what_is_not_ours_is_never_overwritten(
    lines: Path, tmp_path: Path, name: str, said: str, overwrite: bool
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / name).write_text(said)
    with pytest.raises(DataError, match="is not prepared data, so it is never overwritten"):
        prepare([lines], home, overwrite=overwrite, progress=False)
    assert (home / name).read_text() == said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"held_out_fraction": 1.0}, r"must be in \[0, 1\), got 1.0"),
        ({"tokenizer": "bpe:many"}, "bpe:many is no vocabulary size"),
        ({"tokenizer": "bpe:300", "vocab_size": 400}, "bpe:300 is no vocabulary size"),
        ({"tokenizer": "byte", "vocab_size": 400}, "for a tokenizer to be trained"),
        ({"tokenizer": "nowhere.json"}, "no tokenizer at nowhere.json"),
    ],
)
def test_wrong_arguments_are_said(
    lines: Path, tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        prepare([lines], tmp_path / "out", progress=False, **arguments)  # type: ignore[arg-type]
    assert not left_behind(tmp_path)


def test_sources_without_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match="hold no text"):
        prepare([tmp_path / "empty.txt"], tmp_path / "out", progress=False)


def test_a_tokenizer_that_was_exchanged_is_found(lines: Path, tmp_path: Path) -> None:
    prepare([lines], tmp_path / "a", progress=False)
    prepare([lines], tmp_path / "b", "bpe:280", progress=False)
    (tmp_path / "a" / "tokenizer.json").write_bytes((tmp_path / "b/tokenizer.json").read_bytes())
    with pytest.raises(DataError, match="is not the one that made its tokens"):
        inspect(tmp_path / "a", progress=False)


def test_a_prepared_tokenizer_is_used_again(lines: Path, tmp_path: Path) -> None:
    prepare([lines], tmp_path / "a", "bpe:280", progress=False)
    prepare([lines], tmp_path / "b", str(tmp_path / "a"), progress=False)
    assert read_manifest(tmp_path / "a") == read_manifest(tmp_path / "b")


def test_the_progress_line_goes_to_standard_error(
    lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary: Summary = prepare([lines], tmp_path / "out")
    printed = capsys.readouterr()
    assert printed.out == "" and "preparing" in printed.err and "400 documents" in printed.err
    assert summary.seconds > 0.0
