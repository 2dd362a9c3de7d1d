"""What a checkpoint copies: one revision's files under second names, that no commit removes.

    ROOT/pinned/ID/00000.safetensors    the same file as the fragment's own, as long as a copy lasts

A name costs nothing and holds no descriptor, however many fragments there are. What a kill leaves
behind is swept when the process starts.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from syncline_proto.codec import crc32c
from syncline_proto.depot import PIECE_BYTES, Depot, Moved
from syncline_proto.errors import CheckpointError, StoreDamaged, StoreError
from syncline_proto.manifest import file_name
from syncline_sync.descriptors import opened
from syncline_sync.durability import beside_runs
from syncline_sync.entries import Entry
from syncline_sync.files import MEND, make_folder

Pin: TypeAlias = Callable[[Path], Entry]
"""Gives a fragment's file a second name, at once, or raises."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """One fragment's file."""

    path: Path
    entry: Entry

    def copy(self, fragment: int, depot: Depot, moved: Moved) -> str:
        """Copy it as the file of ``fragment``, and return its name there; for long.

        Raises:
            StoreDamaged: the file is not what its head says; nothing of it stays there.
            CheckpointError: the depot refuses, or the disk that the file is on.
        """
        name = file_name(fragment, self.entry.crc32c)
        depot.put(name, self._checked(moved))
        if depot.size(name) != self.entry.bytes:
            raise CheckpointError(f"{depot.url}/{name} is shorter than what was written.")
        return name

    def _checked(self, moved: Moved) -> Generator[bytes]:
        crc, size = 0, 0
        with self._readable() as file:
            while piece := self._piece(file):
                crc, size = crc32c(piece, crc), size + len(piece)
                yield piece
                moved(len(piece))
        if (size, crc) != (self.entry.bytes, self.entry.crc32c):
            raise StoreDamaged(f"{self.entry.file} is damaged: its checksum is another. {MEND}")

    def _readable(self) -> BinaryIO:
        try:
            return opened(self.path, lambda: self.path.open("rb"))
        except StoreError as error:  # want of descriptors, which is no matter of the run's
            said = beside_runs(error)
            raise CheckpointError(f"{self.entry.file} cannot be copied. {said}") from None
        except OSError as error:
            raise self._unread(error) from error

    def _piece(self, file: BinaryIO) -> bytes:
        try:
            return file.read(PIECE_BYTES)
        except OSError as error:
            raise self._unread(error) from error

    def _unread(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.entry.file} cannot be read: {error.strerror or error}.")


def pin_folder(root: Path) -> Path:
    """A folder for the pins of one copy; it is not made yet."""
    return root / "pinned" / uuid.uuid4().hex


def pin_all(folder: Path, pins: Mapping[int, Pin]) -> dict[int, Pinned]:
    """Pin files, by fragment; ``unpin`` the folder afterwards, whatever comes of it.

    Raises:
        RevisionGone: one of them is not kept any more.
        CheckpointError: the disk refuses, or the root is gone.
    """
    try:
        for path in (folder.parent, folder):
            make_folder(path)
    except StoreError as error:
        raise CheckpointError(f"Nothing can be pinned. {beside_runs(error)}") from error
    held: dict[int, Pinned] = {}
    for fragment, pin in pins.items():
        path = folder / f"{fragment:05d}.safetensors"
        held[fragment] = Pinned(path, pin(path))
    return held


def unpin(folder: Path) -> None:
    """Let go of all that is pinned in the folder."""
    shutil.rmtree(folder, ignore_errors=True)


def sweep_pins(root: Path) -> None:
    """Remove what a kill left pinned; only before anything is pinned."""
    shutil.rmtree(root / "pinned", ignore_errors=True)
