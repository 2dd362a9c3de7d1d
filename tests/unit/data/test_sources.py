"""Every format is read whole, in a fixed order, and what is malformed is named."""

import gzip
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from syncline.data import corpus, readers
from syncline.data.errors import DataError
from syncline.data.sources import resolve
from syncline.data.tokenizer import load_tokenizer


def texts(*specs: str | Path, text_field: str = "text") -> list[str]:
    return [one.text for source in resolve(specs, text_field) for one in source.read()]


def write_jsonl(path: Path, *lines: str) -> Path:
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_a_text_file_is_one_document_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfcaf\xe9\r\nnext\n")
    assert texts(path) == ["caf\udce9\r\nnext\n"]


@pytest.mark.parametrize("line", ["words and wörds\n", "日本語🙂"])
def test_a_long_file_comes_in_whole_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(readers, "WHOLE_BYTES_MAX", 100)
    monkeypatch.setattr(readers, "PIECE_BYTES", 50)
    path = tmp_path / "long.txt"
    path.write_text(line * 40, encoding="utf-8")
    (source,) = resolve([path])
    documents = list(source.read())
    assert "".join(one.text for one in documents) == line * 40
    assert [one.ends for one in documents] == [False] * (len(documents) - 1) + [True]
    assert len({one.key for one in documents}) == len(documents) > 5
    assert sum(one.read_bytes for one in documents) == source.size_bytes
    # No piece breaks a character: that would give surrogate escapes.
    assert all(one.text.isprintable() or one.text.endswith("\n") for one in documents)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.ndjson"])
def test_json_lines_give_their_field(tmp_path: Path, name: str) -> None:
    path = write_jsonl(tmp_path / name, '{"text": "one"}', "", '{"id": 2, "text": "tw\\u00f6"}')
    assert texts(path) == ["one", "twö"]
    (source,) = resolve([path])
    read = sum(one.read_bytes for one in source.read())
    assert 0 < read <= (source.size_bytes or 0)
    other = write_jsonl(tmp_path / f"other-{name}", '{"body": "b"}')
    assert texts(other, text_field="body") == ["b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "cut', r"line 3 is not valid JSON: Unterminated string starting at column 10"),
        ('["text"]', r"line 3 is not a JSON object with the field 'text'"),
        ('{"body": "b", "id": 1}', r"line 3 has no field 'text'; it has body, id"),
        ('{"text": null}', r"line 3: the field 'text' is not a string"),
        ("[" * 200_000, r"line 3 is not valid JSON"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_malformed_line_is_named(tmp_path: Path, name: str, line: str, message: str) -> None:
    path = write_jsonl(tmp_path / name, '{"text": "fine"}', "", line, '{"text": "fine"}')
    with pytest.raises(DataError, match=f"{path}, {message}"):
        texts(path)


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "caf\xe9"}\n')
    with pytest.raises(DataError, match=f"{path}, line 1 is not valid JSON"):
        texts(path)


@pytest.mark.parametrize("damage", ["cut", "garbled", "not gzip"])
def test_a_damaged_archive_is_named(tmp_path: Path, damage: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl.gz", *(json.dumps({"text": str(i)}) for i in range(999)))
    data = bytearray(path.read_bytes())
    if damage == "garbled":
        data[40:60] = b"\xff" * 20
    path.write_bytes({"cut": data[:-20], "garbled": data, "not gzip": b"{}\n"}[damage])
    with pytest.raises(DataError, match=f"cannot read {path}: "):
        texts(path)


def test_parquet_gives_its_column_over_all_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    words = [f"row {number}" for number in range(100)]
    pq.write_table(pa.table({"text": words, "id": range(100)}), path, row_group_size=7)
    assert texts(path) == words
    with pytest.raises(DataError, match=f"{path} has no column 'body'; it has text, id"):
        texts(path, text_field="body")
    with pytest.raises(DataError, match="column 'id' holds int64, not strings"):
        texts(path, text_field="id")


def test_damaged_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match=f"{path} is not a readable Parquet file"):
        texts(path)
    pq.write_table(pa.table({"text": ["a", None]}), path)
    with pytest.raises(DataError, match=f"{path}, row 2: the column 'text' is empty"):
        texts(path)


def test_a_folder_is_read_by_name_without_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    (prepared / "manifest.json").write_text('{"format": "syncline-tokens"}')
    (prepared / "tokenizer.json").write_text("{}")
    (tmp_path / "b.md").write_text("b")
    (tmp_path / "a.py").write_text("a")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "pack.tar.gz").write_bytes(gzip.compress(b"x"))
    (tmp_path / ".git" / "HEAD").write_text("hidden")
    write_jsonl(tmp_path / "sub" / "c.jsonl.gz", '{"text": "c"}')
    assert texts(tmp_path) == ["a", "b", "c"]
    assert texts(str(tmp_path / "**" / "*.jsonl.gz"), str(tmp_path / "?.py")) == ["c", "a"]


def test_names_do_not_depend_on_where_the_folder_is(tmp_path: Path) -> None:
    names = []
    for place in ("here", "there/deep"):
        folder = tmp_path / place
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "a.txt").write_text("a")
        for spec in (str(folder), str(folder / "*" / "*.txt")):
            names += [one.name for source in resolve([spec]) for one in source.read()]
    assert set(names) == {"sub/a.txt"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.txt", r"there is no file or folder nowhere.txt in /.*; name files or folders"),
        ("owner/name", r"owner/name in /.*, or hf:OWNER/NAME for a Hugging Face dataset\.$"),
        ("/nowhere/at/all", r"^there is no file or folder /nowhere/at/all; name files or folders"),
        ("nowhere/*.txt", r"^no file matches nowhere/\*.txt in /.*; name files or folders"),
        ("hf:", r"names no dataset"),
    ],
)
def test_what_names_nothing_is_said_before_any_work(spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        resolve([spec])
    assert refused.value.message.endswith(".")


def test_a_binary_file_given_by_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("text".encode("utf-16"))
    with pytest.raises(DataError, match=f"{path} is not a text file in UTF-8"):
        texts(path)


def test_what_is_no_regular_file_is_refused_unread(tmp_path: Path) -> None:
    """/dev/zero never ends, and a pipe that nobody writes to never begins."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for spec in ("/dev/zero", str(pipe), str(tmp_path / "link")):
        with pytest.raises(DataError, match=f"^{spec} is a device, pipe or socket, and no"):
            resolve([spec])
        with pytest.raises(DataError, match="and no tokenizer file"):
            load_tokenizer(spec)
    with pytest.raises(DataError, match="holds no text"):
        resolve([tmp_path])
    (tmp_path / "a.txt").write_text("a")
    assert texts(tmp_path) == texts(str(tmp_path / "*")) == ["a"]


def test_no_source_is_refused() -> None:
    with pytest.raises(DataError, match="name files or folders, builtin"):
        resolve([])


@pytest.mark.filterwarnings("ignore")
def test_a_saved_hugging_face_dataset_is_read(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["one", "two"]})
    rows.save_to_disk(tmp_path / "plain")
    datasets.DatasetDict({"test": rows}).save_to_disk(tmp_path / "splits")
    assert texts(f"hf:{tmp_path}/plain") == ["one", "two"]
    assert texts(f"hf:{tmp_path}/splits:test") == ["one", "two"]
    with pytest.raises(DataError, match="cannot read dataset .*splits"):
        texts(f"hf:{tmp_path}/splits:validation")
    with pytest.raises(DataError, match="row 1 has no field 'body'"):
        texts(f"hf:{tmp_path}/plain", text_field="body")


def test_without_datasets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'syncline\[hub\]'"):
        texts("hf:owner/name")


def test_the_builtin_corpus_is_there_and_the_same_without_tests(tmp_path: Path) -> None:
    files = corpus.builtin_files()
    names = [name for name, _ in files]
    assert names == sorted(set(names)) and "asyncio/events.py" in names
    assert not any(part in corpus.LEFT_OUT for name in names for part in name.split("/"))
    (source,) = resolve(["builtin"])
    total = sum(len(one.text) for one in source.read())
    assert total > 5_000_000

    # The same library as a distribution might ship it, once with tests and once without.
    for name, with_tests in (("full", True), ("stripped", False)):
        root = tmp_path / name
        (root / "test").mkdir(parents=True)
        (root / "site-packages").mkdir()
        (root / "site-packages" / "other.py").write_text("x")
        (root / "big.py").write_bytes(b"# words\n" * 200_000)
        if with_tests:
            (root / "test" / "test_big.py").write_text("assert True\n")
    full, stripped = (corpus.builtin_files(tmp_path / name) for name in ("full", "stripped"))
    assert [name for name, _ in full] == [name for name, _ in stripped] == ["big.py"]


def test_a_library_without_source_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{tmp_path} has none; give a text file instead"):
        corpus.builtin_files(tmp_path)
