"""What the user names, resolved into sources of documents.

A source is a text file, JSON lines, Parquet, a folder or a glob of such, ``builtin``, or
``hf:NAME[@CONFIG][:SPLIT]`` for a Hugging Face dataset. Resolving only looks at names and sizes,
so a misspelt path is told before any work; documents are read when asked for, in an order that
depends on names alone. Nothing is ever written.
"""

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from syncline.data import corpus, readers
from syncline.data.errors import DataError
from syncline.data.manifest import is_prepared
from syncline.data.readers import Document

BUILTIN = "builtin"
HUB_PREFIX = "hf:"
WAY_ON = f"name files or folders, {BUILTIN}, or {HUB_PREFIX}OWNER/NAME for a Hugging Face dataset"
JSONL_ENDINGS = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Something that yields documents, as often as asked."""

    name: str
    size_bytes: int | None
    """How many bytes reading it will count; None where only reading tells."""
    read: Callable[[], Iterator[Document]]


def resolve(specs: Sequence[str | Path], text_field: str = "text") -> list[Source]:
    """The sources that the specs name, in their order; folders and globs by name within.

    Raises:
        DataError: a spec names nothing that can be read.
    """
    if not specs:
        raise DataError(f"no source given; {WAY_ON}.")
    return [source for spec in specs for source in _resolved(str(spec), text_field)]


def _resolved(spec: str, text_field: str) -> list[Source]:
    if spec == BUILTIN:
        return [_builtin()]
    if spec.startswith(HUB_PREFIX):
        return [_hub(spec, text_field)]
    path = Path(spec)
    if path.is_dir():
        found = [_file(one, path, text_field) for one in _files_under(path) if _wanted(one)]
    elif _is_endless(path):
        raise DataError(
            f"{spec} is a device, pipe or socket, and no regular file; copy what it gives into a "
            "file, and name that."
        )
    elif path.exists():
        found = [_file(path, path.parent, text_field)]
    elif glob.has_magic(spec):
        matches = [Path(match) for match in sorted(glob.glob(spec, recursive=True))]
        if not matches:
            raise DataError(f"no file matches {spec}{_looked_in(path)}; {WAY_ON}.")
        root = _fixed_part(spec)
        found = [_file(one, root, text_field) for one in matches if one.is_file() and _wanted(one)]
    else:
        raise DataError(f"there is no file or folder {spec}{_looked_in(path)}; {WAY_ON}.")
    if not found:
        raise DataError(f"{spec} holds no text, JSON lines or Parquet file; {WAY_ON}.")
    return found


def _looked_in(path: Path) -> str:
    """From where a path was looked up, in case that is the mistake."""
    return "" if path.is_absolute() else f" in {Path.cwd()}"


def _file(path: Path, root: Path, text_field: str) -> Source:
    # Named from the root on, so that moving the whole tree moves no document between splits.
    name = path.relative_to(root).as_posix()
    if path.name.endswith(JSONL_ENDINGS):
        read = partial(readers.read_jsonl, path, name, text_field)
    elif path.suffix == ".parquet":
        read = partial(readers.read_parquet, path, name, text_field)
    else:
        read = partial(readers.read_text, path, name)
    with readers.reading(path):
        return Source(name=str(path), size_bytes=path.stat().st_size, read=read)


def _builtin() -> Source:
    files = corpus.builtin_files()
    size = sum(path.stat().st_size for _, path in files)
    return Source(name=BUILTIN, size_bytes=size, read=partial(_builtin_documents, files))


def _builtin_documents(files: Sequence[tuple[str, Path]]) -> Iterator[Document]:
    for name, path in files:
        with readers.reading(path):
            data = path.read_bytes()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            continue  # this corpus is UTF-8 only, so that it is the same text for any tokenizer
        yield Document(name=name, text=text, read_bytes=len(data))


def _hub(spec: str, text_field: str) -> Source:
    rest, _, split = spec.removeprefix(HUB_PREFIX).partition(":")
    dataset_name, _, config = rest.partition("@")
    if not dataset_name:
        raise DataError(f"{spec} names no dataset; write {HUB_PREFIX}OWNER/NAME.")
    read = partial(readers.read_hub, dataset_name, config or None, split or "train", text_field)
    return Source(name=spec, size_bytes=None, read=read)


def _files_under(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        if is_prepared(Path(folder)):  # which is no text to prepare again
            subfolders.clear()
            continue
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def _wanted(path: Path) -> bool:
    """Of what a folder or glob offers, pictures, pipes and the like are passed over."""
    if _is_endless(path):
        return False
    packed = path.suffix == ".parquet" or path.name.endswith(JSONL_ENDINGS)
    return packed or not readers.looks_binary(path)


def _is_endless(path: Path) -> bool:
    """Whether it is there and neither a file nor a folder; a link counts as what it leads to."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


def _fixed_part(pattern: str) -> Path:
    """The folders of a glob before its first wildcard."""
    parts = Path(pattern).parts
    wild = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:wild])
