"""Files that are whole, or known to be damaged: sealed texts, safetensors, durable renames.

Knows nothing of runs. A disk that refuses is StoreError; what cannot be what we wrote, a flipped
bit, another version, a folder in a file's place, is StoreDamaged, which names the file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from syncline_proto.codec import Float32, UInt16, crc32c
from syncline_proto.errors import InvalidRequest, StoreDamaged
from syncline_proto.seals import Seal
from syncline_sync.descriptors import opened
from syncline_sync.durability import StoreRefuses, remedy
from syncline_sync.memory import BLOCK, placed
from syncline_sync.past_cache import write_parts

VERSION = 3
"""Of everything in the store."""

Tensor: TypeAlias = Float32 | UInt16
"""What a file holds: fp32 values, or bf16 as its bits; flat."""

PIECE_BYTES = 4 << 20
"""Of a file that is only checked, at a time."""

_DTYPES = {"F32": np.dtype(np.float32), "BF16": np.dtype(np.uint16)}

MEND = (
    "Bring it back from a copy, then start the service again; or restore a checkpoint as another "
    "run, and stop this one."
)

SEAL = Seal("version", VERSION, "body")
"""Of every JSON in the store."""


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]
) -> tuple[int, int]:
    """Write and sync a safetensors file without a copy of the tensors; (bytes, CRC-32C).

    Raises:
        StoreError: the disk refuses; what was written of the file is gone.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.nbytes
        dtype = "F32" if tensor.itemsize == 4 else "BF16"
        header[name] = {"dtype": dtype, "shape": [tensor.size], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % BLOCK)  # so that tensors begin where a block does
    parts = (len(text).to_bytes(8, "little"), text, *(t.data for t in tensors.values()))
    with writing(path, path), opened(path, lambda: path.open("wb", buffering=0)) as file:
        size, crc = write_parts(file.fileno(), parts)
        os.fsync(file.fileno())
    return size, crc


@dataclass(frozen=True, slots=True)
class Array:
    """Where an array lies in a file of safetensors."""

    dtype: np.dtype[np.float32] | np.dtype[np.uint16]
    size: int
    """Elements."""
    at: int
    """Bytes from the file's beginning."""


def arrays_of(file: int) -> tuple[dict[str, Array], dict[str, str]]:
    """Where the tensors of an open file lie whose checksum is right, and its metadata.

    Raises:
        ValueError: it is no file of safetensors, whatever its checksum.
    """
    start, size = 8 + int.from_bytes(os.pread(file, 8, 0), "little"), os.fstat(file).st_size
    return _header(os.pread(file, min(start, size) - 8, 8) if size > 8 else b"", start, size)


def array_of(file: int, array: Array) -> Tensor:
    """One of them, read into memory of its own.

    Raises:
        ValueError: the file ends amid it.
    """
    values: Tensor = (
        placed(array.size, np.float32, array.at)
        if array.dtype == np.float32
        else placed(array.size, np.uint16, array.at)
    )
    read_exactly(file, values.data.cast("B"), array.at)
    return values


def read_exactly(file: int, into: memoryview, at: int) -> None:
    """Fill ``into`` with what an open file has from byte ``at`` on.

    Raises:
        ValueError: the file ends before it is full.
    """
    done = 0
    while done < len(into):  # one read gives at most 2 GiB
        count = os.preadv(file, [into[done:]], at + done)
        if not count:
            raise ValueError(f"it ends after {at + done} bytes, amid an array")
        done += count


def checksum_of(file: int) -> tuple[int, int]:
    """(bytes, CRC-32C) of an open file, of which only a piece is ever in memory."""
    crc, size = 0, 0
    while data := os.pread(file, PIECE_BYTES, size):
        crc, size = crc32c(data, crc), size + len(data)
    return size, crc


def _header(text: bytes, start: int, size: int) -> tuple[dict[str, Array], dict[str, str]]:
    """Read what stands before the tensors, which lie from ``start`` to the file's ``size``."""
    arrays: dict[str, Array] = {}
    try:
        header = cast(dict[str, Any], json.loads(text))
        metadata = cast(dict[str, str], header.pop("__metadata__", {}))
        for name, row in header.items():
            begin, end = row["data_offsets"]
            if row["dtype"] not in _DTYPES:
                raise ValueError(f"an array of it is of {row['dtype']!r:.80}")
            dtype = _DTYPES[row["dtype"]]
            if not (type(begin) is type(end) is int and 0 <= begin <= end <= size - start):
                raise ValueError("an array of it lies elsewhere")
            arrays[name] = Array(dtype, (end - begin) // dtype.itemsize, start + begin)
    except (AttributeError, LookupError, OverflowError, RecursionError, TypeError) as error:
        raise ValueError(f"it is no file of safetensors ({error})") from error
    return arrays, metadata


def replace_file(path: Path, data: bytes, before: Path | None = None) -> None:
    """Write ``data`` beside ``path``, sync, rename it over, sync the folder.

    What it replaces stays as ``before``, if that is wanted and the disk takes it.

    Raises:
        StoreError: the disk refuses; ``path`` is as it was, or new.
        StoreDamaged: ``path`` is a folder.
    """
    beside = path.with_name(path.name + ".new")
    with writing(path, beside):
        if path.is_dir():
            raise StoreDamaged(f"{path} is a folder; move it away, then start the service again.")
        with opened(beside, lambda: beside.open("wb")) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            _keep(path, before)
        beside.replace(path)
        sync_folder(path.parent)


def _keep(path: Path, before: Path) -> None:
    """Let ``before`` be the file that ``path`` is now; or nothing, rather than an older one."""
    beside = before.with_name(before.name + ".new")
    try:
        beside.unlink(missing_ok=True)
        os.link(path, beside)
        beside.replace(before)
    except OSError:  # there is none yet, or the disk has no links
        with contextlib.suppress(OSError):
            before.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder that is still there after a power cut.

    Raises:
        StoreError: the disk refuses, or the folder that it is to be in is gone.
    """
    with writing(path):
        if not path.is_dir():
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)


def make_mark(path: Path) -> None:
    """Make an empty file that is still there after a power cut.

    Raises:
        StoreError: the disk refuses.
    """
    with writing(path):
        if not _is_there(path):
            opened(path, path.touch)
            sync_folder(path.parent)


def is_there(path: Path) -> bool:
    """Whether there is such a file or folder.

    Raises:
        StoreDamaged: that cannot be told, as in a folder that may not be searched.
    """
    with readable(path):
        return _is_there(path)


def _is_there(path: Path) -> bool:
    """``Path.exists``, which takes what cannot be looked at for missing, of a newer Python."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read(path: Path) -> bytes:
    """The bytes of a file that must be there.

    Raises:
        StoreDamaged: it cannot be read.
        StoreError: no file descriptor is left for it.
    """
    with readable(path):
        return opened(path, path.read_bytes)


@contextlib.contextmanager
def reading(path: Path) -> Generator[int]:
    """A descriptor of a file that must be there.

    Raises:
        StoreDamaged: it cannot be read.
        StoreError: no file descriptor is left for it.
    """
    with readable(path):
        file = opened(path, lambda: os.open(path, os.O_RDONLY))
        try:
            yield file
        finally:
            os.close(file)


@contextlib.contextmanager
def readable(path: Path) -> Generator[None]:
    """Turn a refusal of the disk to give a file into StoreDamaged."""
    try:
        yield
    except OSError as error:
        raise StoreDamaged(f"Cannot read {path}: {error.strerror or error}. {MEND}") from error


@contextlib.contextmanager
def writing(path: Path, half: Path | None = None) -> Generator[None]:
    """Turn a refusal of the disk into StoreError, and take away what is ``half`` written."""
    try:
        yield
    except OSError as error:
        if half is not None:
            with contextlib.suppress(OSError):  # the next commit takes it away
                half.unlink()
        is_gone = isinstance(error, FileNotFoundError)
        mend = remedy(error, "Bring its folder back" if is_gone else "Free the disk or mend it")
        raise StoreRefuses(f"Cannot write {path}: {error.strerror or error}.", mend) from error


@contextlib.contextmanager
def understood(path: Path) -> Generator[None]:
    """Turn what is not of this version's form into StoreDamaged."""
    try:
        yield
    except (ValueError, LookupError, TypeError, RecursionError, InvalidRequest) as error:
        raise StoreDamaged(
            f"{path} is damaged, or not of this version's form ({error}). {MEND}"
        ) from error


def sync_folder(path: Path) -> None:
    """Make the names in a folder outlast a power cut."""
    folder = opened(path, lambda: os.open(path, os.O_RDONLY))
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
