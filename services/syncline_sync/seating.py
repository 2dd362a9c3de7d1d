"""Which seat the stores in a folder are of: a service never takes up another's, or too few.

With other numbers than before, a service would find nothing of the fragments that it owns now, and
begin them anew from whatever replica comes first. So the folder remembers, and refuses that. Also
tells which places are in such a folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from syncline_proto.errors import ConfigError, StoreError
from syncline_sync.files import SEAL, read, replace_file, understood

MARK = "seat.json"


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
        raise StoreError(
            f"Cannot write to {path}: {error.strerror}; choose another with --data."
        ) from error
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
        ConfigError: it is another's; the message says how to start that.
        StoreDamaged: what it remembers cannot be read.
        StoreError: the disk refuses.
    """
    mark, mine = data / MARK, (index, shards)
    there = (0, 1)  # a store that says nothing is a single service's
    if mark.exists():
        with understood(mark):
            told = json.loads(SEAL.open(read(mark)))
            there = (told["index"], told["shards"])
    if there == mine:
        return
    if any((*data.glob("runs/*"), *data.glob("sync-*/runs/*"))):
        raise ConfigError(_other(data, *there))
    replace_file(mark, SEAL.close(json.dumps({"index": index, "shards": shards})))


def _other(data: Path, index: int | None, shards: int) -> str:
    if shards == 1:
        return (
            f"{data} is the store of a service that has every fragment; start it without --shards, "
            "or choose another folder with --data."
        )
    if index is None:
        what, how = f"holds the stores of {shards} sync services", f"--shards {shards}"
    else:
        what = f"is the store of sync service {index} of {shards}"
        how = f"--shards {shards} --index {index}"
    return f"{data} {what}; start it with {how}, or choose another folder with --data."
