"""A run that is being restored: its fragments are fetched, checked and kept aside.

    ROOT/restoring/ID/runs/RUN/...            as it will lie in ROOT/runs/RUN
    ROOT/restoring/ID/runs/RUN/origin.json    the ID of the checkpoint, and whose part; the last

Nobody sees any of it until the control plane names the run with that checkpoint as its origin: then
it is renamed to its place, which is the only step that counts. So a run is there whole or not at
all, and nobody opens it before; a restore that fails leaves files here and no run. Restores of one
name from several checkpoints lie apart, and the control plane says which of them the run is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Collection, Generator
from pathlib import Path
from typing import Any, cast

from syncline_proto.codec import Float32, UInt16, crc32c
from syncline_proto.depot import Depot, Moved
from syncline_proto.errors import CheckpointDamaged, CheckpointError, StoreDamaged, StoreError
from syncline_proto.manifest import Entry, Manifest, check_file
from syncline_proto.owners import Seat
from syncline_sync.descriptors import opened
from syncline_sync.durability import beside_runs
from syncline_sync.entries import check_arrays
from syncline_sync.files import (
    SEAL,
    array_of,
    arrays_of,
    is_there,
    make_folder,
    read,
    replace_file,
    sync_folder,
    understood,
    writing,
)
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.saved import check_numbers, saved_from_json
from syncline_sync.store import RunStore

MARK = "origin.json"

KEPT_S = 3600.0
"""What was fetched and never named by the control plane is removed after this long."""


class Aside:
    """One run's place aside, for one checkpoint (its manifest's ``id``), at the service of a seat.

    Its methods wait for the disk and the network: call them in a pool.
    """

    def __init__(self, root: Path, run: str, checkpoint: str, seat: Seat) -> None:
        self._run = run
        self._store = RunStore(root / "restoring" / checkpoint, run)
        self._place = RunStore(root, run).folder
        self._mark = {"id": checkpoint, "index": seat.index, "shards": seat.shards}
        self._committing = threading.Lock()
        """Of what is fetched at a time, one fragment is in memory."""

    def keep(self) -> bool:
        """Whether all that is ours has been fetched already; if so, it is kept for longer.

        The run may begin from it at any time, so it is not fetched again.
        """
        with contextlib.suppress(OSError, StoreError):  # gone to its place, or to be fetched anew
            if _mark_of(self._store.folder) == self._mark:
                os.utime(self._store.folder / MARK)
                return True
        return False

    def begin(self, manifest: Manifest) -> dict[int, FragmentStore]:
        """Start anew, where nothing is whole; the fragments' places, by number.

        Raises:
            CheckpointError: the disk refuses.
        """
        self.drop()
        with not_ours():
            for folder in (self._store.root.parent, self._store.root):
                make_folder(folder)
            self._store.begin()
            self._store.save_layout(manifest.parsed_layout)
        return dict(enumerate(self._store.fragments(manifest.parsed_layout)))

    def fetch(self, store: FragmentStore, entry: Entry, depot: Depot, moved: Moved) -> None:
        """Fetch one fragment, check it, and make it the first commit of its place.

        Raises:
            CheckpointDamaged: it is not what the manifest says; it is named.
            CheckpointError: the depot or the disk refuses.
        """
        fetched = store.folder.with_name(f"{store.folder.name}.fetched")
        where = f"{depot.url}/{entry.file}"
        crc, size = 0, 0
        with not_ours(), writing(fetched):
            with opened(fetched, lambda: fetched.open("w+b")) as file:
                for piece in depot.pieces(entry.file):
                    crc, size = crc32c(piece, crc), size + len(piece)
                    file.write(piece)
                    moved(len(piece))
                check_file(where, entry, size, crc)
                file.flush()
                with self._committing:
                    _commit(store, entry, file.fileno(), where)
            fetched.unlink()

    def finish(self) -> None:
        """Say that all is there: from now on the run may begin.

        Raises:
            CheckpointError: the disk refuses.
        """
        with not_ours():
            replace_file(self._store.folder / MARK, SEAL.close(json.dumps(self._mark)))

    def adopt(self, checkpoint: str) -> bool:
        """Put the run in its place, if it is not there; return whether that was done now.

        ``checkpoint`` is its address, for people.

        Raises:
            StoreDamaged: nothing is aside of this checkpoint for this seat, or not all.
            StoreError: the disk refuses.
        """
        if _mark_of(self._place) == self._mark:
            return False
        if _mark_of(self._store.folder) != self._mark or is_there(self._place):
            raise StoreDamaged(
                f"it is to begin from the checkpoint {checkpoint}, which was not fetched "
                "here; stop the run, and restore the checkpoint under another name."
            )
        make_folder(self._place.parent)
        with writing(self._place):
            self._store.folder.rename(self._place)
            sync_folder(self._place.parent)
        _prune(self._store.folder)
        return True

    def drop(self) -> None:
        """Remove what is here."""
        _remove(self._store.folder)


def sweep_aside(root: Path, under_way: Collection[str] = ()) -> None:
    """Remove what restores left that were killed, or never came to their run.

    Those of the runs ``under_way`` stay; whose restore begins meanwhile is to be found there.
    """
    folders, real = list[Path](), Path(os.path.realpath(root)) / "restoring"
    with contextlib.suppress(OSError):  # gone while we look, or for the next time
        folders += (root / "restoring").glob("*/runs/*")
    for folder in folders:
        if not Path(os.path.realpath(folder)).is_relative_to(real):
            continue  # a link leads to what is not ours
        # Asked again at the last moment: a restore may have begun while we looked at the disk.
        if folder.name not in under_way and _is_left(folder) and folder.name not in under_way:
            _remove(folder)


def _is_left(folder: Path) -> bool:
    """Whether a restore has left it, and its run does not come for it."""
    try:
        if not folder.is_dir():
            return False
        return (folder / MARK).stat().st_mtime < time.time() - KEPT_S
    except FileNotFoundError:  # it was not fetched whole
        return True
    except OSError:  # somebody else's business
        return False


def _remove(folder: Path) -> None:
    """Remove a run's folder: out of sight first, since it may be adopted at this moment."""
    gone = folder.with_name(f".{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):  # there is nothing, or it is in its place by now
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        _prune(gone)


def _prune(folder: Path) -> None:
    """Remove the empty folders in which one was aside that is gone."""
    with contextlib.suppress(OSError):  # there are others in them
        folder.parent.rmdir()
        folder.parent.parent.rmdir()


def _mark_of(folder: Path) -> dict[str, Any] | None:
    """Which checkpoint a run's folder is of, and whose part; None if it is of none, or not whole.

    Raises:
        StoreDamaged: what says so is damaged.
    """
    mark = folder / MARK
    if not is_there(mark):
        return None
    with understood(mark):
        return cast(dict[str, Any], json.loads(SEAL.open(read(mark))))


def _commit(store: FragmentStore, entry: Entry, file: int, where: str) -> None:
    """Write an open file's tensors as the first commit of a fragment of another run.

    Raises:
        CheckpointDamaged: the file is whole, and not this fragment's.
    """
    place = store.place
    try:
        arrays, metadata = arrays_of(file)
        saved = saved_from_json(metadata["saved"])
        whose = (metadata["fragment"], metadata["layout"], saved.revision)
        if whose != (str(place.fragment), place.layout, entry.revision):
            raise ValueError("it is of another fragment, revision or layout")
        check_arrays(arrays, saved, place.numel)
        check_numbers(memory := saved.restored())
        tensors = {name: array_of(file, array) for name, array in arrays.items()}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointDamaged(f"{where} is no fragment of this version ({error}).") from error
    parameters, momentum = (cast(Float32, tensors[name]) for name in ("parameters", "momentum"))
    published = cast(UInt16 | None, tensors.get("published"))
    store.commit(memory, parameters, momentum, published)


@contextlib.contextmanager
def not_ours() -> Generator[None]:
    """A disk that refuses here stops the restore, and no run that is at work."""
    try:
        yield
    except StoreError as error:
        said = beside_runs(error)
        raise CheckpointError(f"The checkpoint is not restored. {said}") from error
