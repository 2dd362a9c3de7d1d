"""One reader for each format: a file in, documents out, a piece of it in memory at a time.

A reader stops at the first thing it cannot read, with one sentence that names the file and the
line or row. It never skips quietly and never repairs text.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from syncline.data.errors import DataError

# A text file up to this size is one whole document; a longer one comes in pieces.
WHOLE_BYTES_MAX = 1 << 20
PIECE_BYTES = 1 << 18
# A character of UTF-8 has at most this many bytes after its first.
CONTINUATION_BYTES_MAX = 3
ROWS_PER_BATCH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document, or a piece of one that is too long to hold."""

    name: str
    """Unlike any other of the source; the held-out split hangs on it."""
    text: str
    read_bytes: int
    """Bytes of the source that were read for it, for the progress bar."""
    piece: int | None = None
    """Counts the pieces of a long document; None for a whole one."""
    ends: bool = True
    """False while more pieces of the same document follow."""

    @property
    def key(self) -> str:
        """What decides the split: the pieces of a long document are dealt out one by one."""
        return self.name if self.piece is None else f"{self.name}#{self.piece}"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the system says about a file into a DataError that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read {path}: {reason}.") from error


def read_text(path: Path, name: str) -> Iterator[Document]:
    """Any text file: one document. Bytes that are not UTF-8 become surrogate escapes."""
    with reading(path), path.open("rb") as file:
        if path.stat().st_size <= WHOLE_BYTES_MAX:
            data = file.read()
            _refuse_binary(path, data)
            yield Document(name=name, text=_decoded(data, first=True), read_bytes=len(data))
            return
        piece = 0
        rest = b""
        chunk = file.read(PIECE_BYTES)
        while chunk:
            # Read ahead, so that the last piece knows that it is, and is never empty.
            following = file.read(PIECE_BYTES)
            data = rest + chunk
            _refuse_binary(path, data)
            cut = _clean_cut(data) if following else len(data)
            yield Document(
                name=name,
                text=_decoded(data[:cut], first=piece == 0),
                read_bytes=cut,
                piece=piece,
                ends=not following,
            )
            rest, chunk = data[cut:], following
            piece += 1


def read_jsonl(path: Path, name: str, field: str) -> Iterator[Document]:
    """One JSON object a line, its text in ``field``; gzip where the name says so."""
    with reading(path), path.open("rb") as raw:
        lines = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        before = 0
        for number, line in enumerate(lines, start=1):
            # A progress bar of a compressed file counts what was read from disk.
            after = raw.tell() if lines is not raw else before + len(line)
            if line.strip():
                text = _field_of(line, field, f"{path}, line {number}")
                yield Document(name=f"{name}:{number}", text=text, read_bytes=after - before)
                before = after
            elif lines is raw:
                before = after


def read_parquet(path: Path, name: str, field: str) -> Iterator[Document]:
    """One row a document, its text in the column ``field``; read row group by row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with reading(path), pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if field not in columns:
                raise DataError(f"{path} has no column {field!r}; it has {', '.join(columns)}.")
            kind = file.schema_arrow.field(field).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise DataError(f"{path}: column {field!r} holds {kind}, not strings.")
            bytes_per_row = path.stat().st_size // max(1, file.metadata.num_rows)
            number = 0
            for group in range(file.num_row_groups):
                batches = file.iter_batches(ROWS_PER_BATCH, row_groups=[group], columns=[field])
                for text in (value for batch in batches for value in batch.column(0).to_pylist()):
                    number += 1
                    if text is None:
                        raise DataError(f"{path}, row {number}: the column {field!r} is empty.")
                    yield Document(name=f"{name}:{number}", text=text, read_bytes=bytes_per_row)
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable Parquet file: {_first_line(error)}.") from error


def read_hub(dataset_name: str, config: str | None, split: str, field: str) -> Iterator[Document]:
    """A Hugging Face dataset, by its name on the hub or by a local folder, row by row."""
    title = f"dataset {dataset_name} ({split})"
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{title} needs the datasets library: pip install 'syncline[hub]'."
        ) from error
    try:
        folder = Path(dataset_name)
        if any((folder / mark).is_file() for mark in ("state.json", "dataset_dict.json")):
            loaded = datasets.load_from_disk(dataset_name)
            rows = loaded[split] if isinstance(loaded, datasets.DatasetDict) else loaded
        else:
            rows = datasets.load_dataset(dataset_name, config, split=split, streaming=True)
        for number, row in enumerate(rows, start=1):
            text = _text_in(row, field, f"{title}, row {number}")
            yield Document(name=f"{dataset_name}:{split}:{number}", text=text, read_bytes=len(text))
    except DataError:
        raise
    except Exception as error:  # loaders, file systems and HTTP clients each raise their own
        raise DataError(f"cannot read {title}: {_first_line(error)}.") from error


def looks_binary(path: Path) -> bool:
    """Whether the file's beginning holds a NUL, which no text file does."""
    with reading(path), path.open("rb") as file:
        return b"\0" in file.read(8192)


def _refuse_binary(path: Path, data: bytes) -> None:
    if b"\0" in data:
        raise DataError(f"{path} is not a text file in UTF-8: it holds NUL bytes.")


def _decoded(data: bytes, *, first: bool) -> str:
    mark = b"\xef\xbb\xbf"
    return data.removeprefix(mark if first else b"").decode("utf-8", "surrogateescape")


def _clean_cut(data: bytes) -> int:
    """Where to cut: after the last line, or else between two characters."""
    newline = data.rfind(b"\n")
    if newline >= 0:
        return newline + 1
    for back in range(1, CONTINUATION_BYTES_MAX + 2):
        if data[-back] & 0xC0 != 0x80:  # the first byte of a character, perhaps unfinished
            return len(data) - back
    return len(data)


def _field_of(line: bytes, field: str, place: str) -> str:
    try:
        value = json.loads(line.rstrip(b"\r\n").decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        reason = f"{error.msg.removesuffix(' at')} at column {error.colno}"
        raise DataError(f"{place} is not valid JSON: {reason}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not valid JSON: {_first_line(error)}.") from error
    return _text_in(value, field, place)


def _text_in(value: object, field: str, place: str) -> str:
    if not isinstance(value, dict):
        raise DataError(f"{place} is not a JSON object with the field {field!r}.")
    if field not in value:
        names = ", ".join(map(str, value)) or "none"
        raise DataError(f"{place} has no field {field!r}; it has {names}.")
    text = value[field]
    if not isinstance(text, str):
        raise DataError(f"{place}: the field {field!r} is not a string.")
    return text


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
