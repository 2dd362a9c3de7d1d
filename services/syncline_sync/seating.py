"""Which seat the stores in a folder are of: a service never takes up another's, or too few.

With other numbers than before, a service would find nothing of the fragments that it owns now, and
begin them anew from whatever replica comes first. So the folder remembers, and refuses that. Also
tells which places are in such a folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator
from pathlib import Path

from syncline_proto.errors import ConfigError, StoreError
from syncline_proto.manifest import MANIFEST
from syncline_proto.owners import SHARDS_MAX
from syncline_sync.durability import StoreRefuses, remedy
from syncline_sync.files import SEAL, is_there, read, replace_file, understood

MARK = "seat.json"

SINGLE = (0, 1)
"""Whose a folder without a mark is: a service's that has every fragment."""


def data_folder(path: Path) -> Path:
    """Make the folder where stores are to be, and see that it can be written.

    Raises:
        StoreError: it cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        why = f"Cannot write to {path}: {'it is no folder' if is_file else error.strerror}"
        if _may_have_runs(path):  # on another folder we would have none of them
            mend = remedy(error, "Free the disk or mend it")
            raise StoreRefuses(f"{why}.", mend) from error
        raise StoreError(f"{why}; choose another with --data.") from error
    return path


def folder_of(data: Path, index: int) -> Path:
    """The store of one of several services that share a folder."""
    return data / f"sync-{index}"


def is_inside(data: Path, path: str) -> bool:
    """Whether a path is in the folder ``data``, or in that of another of several services.

    The folder of a single service bears no mark: of those only our own is known.
    """
    # Not by ``Path.resolve``, which raises where links lead back to themselves.
    found = Path(os.path.realpath(path))
    if found.is_relative_to(os.path.realpath(data)):
        return True
    return any(os.path.exists(above / MARK) for above in (found, *found.parents))


def take_seat(data: Path, index: int | None, shards: int) -> None:
    """Remember, in a folder that has no run yet, whose it is; compare, in one that has.

    Args:
        index: of the service whose store it is; None: it holds those of all ``shards``.

    Raises:
        ConfigError: it is another's, and the message says how to start that; or it holds
            checkpoints, which are copies of runs and no store of theirs.
        StoreDamaged: what it remembers cannot be read.
        StoreError: the disk refuses.
    """
    mine = (index, shards)
    with _listing(data):
        mark = _of(data / MARK)
        there = mark or _of_others(data) or SINGLE
        if there != mine and _has_runs(data):
            raise ConfigError(_other(data, *there))
        if mark is None and not _has_runs(data) and _has_checkpoints(data):
            raise ConfigError(
                f"{data} holds checkpoints, and no store of a sync service; choose another folder "
                "with --data, and begin a run from one of them by `syncline checkpoints restore`."
            )
    if (mark or SINGLE) != mine:
        replace_file(data / MARK, SEAL.close(json.dumps({"index": index, "shards": shards})))


@contextlib.contextmanager
def _listing(data: Path) -> Generator[None]:
    """Turn a refusal to tell what is in a folder into StoreError."""
    try:
        yield
    except OSError as error:
        mend = remedy(error, "Mend the disk")
        raise StoreRefuses(f"Cannot look into {data}: {error.strerror or error}.", mend) from error


def _has_runs(data: Path) -> bool:
    """Whether a run is in one of the stores in a folder."""
    return any((*data.glob("runs/*"), *data.glob("sync-*/runs/*")))


def _has_checkpoints(data: Path) -> bool:
    """Whether a folder is a checkpoint, or one in which they are kept."""
    return any((*data.glob(MANIFEST), *data.glob(f"*/{MANIFEST}")))


def _may_have_runs(data: Path) -> bool:
    """The same of a folder that may not even be read."""
    try:
        return _has_runs(data)
    except OSError:
        return True


def _of(mark: Path) -> tuple[int | None, int] | None:
    """What a mark remembers; None if there is none.

    Raises:
        StoreDamaged: it cannot be read.
    """
    if not is_there(mark):
        return None
    with understood(mark):
        told = json.loads(SEAL.open(read(mark)))
        index, shards = told["index"], told["shards"]
        if not (index is None or type(index) is int) or type(shards) is not int:
            raise TypeError("it names no seat")
        if not 0 <= (index or 0) < shards <= SHARDS_MAX:
            raise ValueError("there is no such seat")
        return index, shards


def _of_others(data: Path) -> tuple[int | None, int] | None:
    """What is known of a folder that has lost its mark, from the marks above and below it.

    To take it for a single service's would be to begin the fragments anew that it has not.

    Raises:
        StoreDamaged: one of them cannot be read.
    """
    if above := _of(data.parent / MARK):
        for number in range(above[1]):
            if data == folder_of(data.parent, number):
                return number, above[1]
    for below in data.glob(f"sync-*/{MARK}"):
        if seat := _of(below):
            return None, seat[1]
    return None


def _other(data: Path, index: int | None, shards: int) -> str:
    if shards == 1:
        return (
            f"{data} is the store of a service that has every fragment, or its {MARK} is lost; "
            "start it without --shards, or bring that back, or choose another folder with --data."
        )
    if index is None:
        what = f"holds the stores of {shards} sync services"
        how = f"--shards {shards} and no --index (or one of them with --data {folder_of(data, 0)})"
    else:
        what = f"is the store of sync service {index} of {shards}"
        how = f"--shards {shards} --index {index}"
    return f"{data} {what}; start it with {how}, or choose another folder with --data."
