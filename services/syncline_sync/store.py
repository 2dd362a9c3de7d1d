"""The store: every committed round as an immutable file, and heads that name what counts.

    ROOT/runs/RUN/run.json                        the run's settings
    ROOT/runs/RUN/layout.json                     the layout, once and for all
    ROOT/runs/RUN/FRAGMENT/r00000012.safetensors  parameters and momentum; the rest as metadata
    ROOT/runs/RUN/FRAGMENT/g00000003.safetensors  mean gradient of a step of the synchronous phase
    ROOT/runs/RUN/FRAGMENT/head.json              the files that count, newest first, with CRC-32C

A commit is: write the file, sync it, write a new head, sync it, rename it over the old one, sync
the folder. A process killed at any instruction leaves the old head or the new one, and both name
whole files. A write that fails raises StoreError: the service stops rather than guess.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from syncline_proto.codec import Float32, crc32c_of
from syncline_proto.errors import InvalidRequest, StoreDamaged, StoreError
from syncline_proto.layout import Layout, layout_from_json, layout_to_json
from syncline_proto.settings import RunSettings
from syncline_sync.core.record import Saved
from syncline_sync.saved import saved_from_json, saved_to_json

KEPT = 2
"""Revisions (and gradient steps) that a head names; older files are removed after the rename."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file that a head names."""

    file: str
    revision: int
    gradient_step: int
    bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A fragment as the last commit left it.

    ``revisions`` are the parameters of the kept revisions, each with what was saved beside it,
    oldest first; ``gradients`` the kept mean gradients, only in the synchronous phase.
    """

    saved: Saved
    momentum: Float32
    revisions: tuple[tuple[Saved, Float32], ...]
    gradients: tuple[tuple[Saved, Float32], ...]

    @property
    def parameters(self) -> Float32:
        return self.revisions[-1][1]


class RunStore:
    """The files of one run."""

    def __init__(self, root: Path, run: str) -> None:
        self.folder = root / "runs" / run

    @property
    def exists(self) -> bool:
        return (self.folder / "layout.json").exists()

    @property
    def has_settings(self) -> bool:
        return (self.folder / "run.json").exists()

    def save_layout(self, layout: Layout) -> None:
        make_folder(self.folder)
        replace_file(self.folder / "layout.json", layout_to_json(layout).encode())

    def load_layout(self) -> Layout:
        path = self.folder / "layout.json"
        with _understood(path):
            return layout_from_json(_read(path).decode())

    def save_settings(self, settings: RunSettings) -> None:
        make_folder(self.folder)
        replace_file(self.folder / "run.json", settings.model_dump_json(indent=1).encode())

    def load_settings(self) -> RunSettings:
        path = self.folder / "run.json"
        with _understood(path):
            return RunSettings.model_validate_json(_read(path))

    def fragment(self, number: int) -> FragmentStore:
        return FragmentStore(self.folder / f"{number:05d}")


class FragmentStore:
    """The files of one fragment. Not for two writers at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: list[Entry] = []

    def commit(self, saved: Saved, parameters: Float32, momentum: Float32) -> None:
        """Make a revision durable: its parameters, momentum and everything remembered."""
        name = self._unused(f"r{saved.revision:08d}")
        tensors = {"parameters": parameters, "momentum": momentum}
        # Mean gradients end with the synchronous phase: revision 1 and later name none.
        kept = [e for e in self._entries if not e.gradient_step][: KEPT - 1]
        self._commit(tensors, saved, Entry(name, saved.revision, 0, 0, 0), kept)

    def commit_gradient(self, saved: Saved, gradient: Float32) -> None:
        """Make a mean gradient durable; the parameters' file stays as it is."""
        name = self._unused(f"g{saved.gradient_step:08d}")
        gradients = [e for e in self._entries if 0 < e.gradient_step < saved.gradient_step]
        kept = gradients[: KEPT - 1] + [e for e in self._entries if not e.gradient_step]
        entry = Entry(name, saved.revision, saved.gradient_step, 0, 0)
        self._commit({"gradient": gradient}, saved, entry, kept)

    def load(self) -> Loaded | None:
        """Read what the head names; None if nothing was ever committed.

        Raises:
            StoreDamaged: a file is missing, short, or fails its checksum; the message names it.
        """
        head = self.folder / "head.json"
        if not head.exists():
            self._entries = []
            self._sweep_leftovers()
            return None
        with _understood(head):
            rows = cast(list[dict[str, Any]], json.loads(_read(head))["files"])
            self._entries = [Entry(**row) for row in rows]
            newest_first = [e for e in self._entries if not e.gradient_step]
            current = newest_first[0]
        self._sweep_leftovers()
        revisions: list[tuple[Saved, Float32]] = []
        gradients: list[tuple[Saved, Float32]] = []
        momentum = np.empty(0, np.float32)
        for entry in reversed(self._entries):
            saved, tensors = self._read(entry)
            if entry.gradient_step:
                gradients.append((saved, tensors["gradient"]))
            else:
                revisions.append((saved, tensors["parameters"]))
            if entry is current:
                momentum = tensors["momentum"]
        saved = (gradients or revisions)[-1][0]
        return Loaded(saved, momentum, tuple(revisions), tuple(gradients))

    def _commit(
        self, tensors: dict[str, Float32], saved: Saved, entry: Entry, kept: list[Entry]
    ) -> None:
        make_folder(self.folder)
        path = self.folder / entry.file
        with _writing(path):
            size, crc = _write_safetensors(path, tensors, {"saved": saved_to_json(saved)})
        entries = [replace(entry, bytes=size, crc32c=crc), *kept]
        head = {"files": [asdict(e) for e in entries]}
        replace_file(self.folder / "head.json", json.dumps(head).encode())
        self._entries = entries
        self._sweep_leftovers()

    def _unused(self, stem: str) -> str:
        """A file name that the head does not name: what counts is never written over.

        A synchronous phase that starts again counts its steps from 1 once more.
        """
        named = {e.file for e in self._entries}
        tries = (f"{stem}{f'.{i}' if i else ''}.safetensors" for i in range(len(named) + 1))
        return next(name for name in tries if name not in named)

    def _read(self, entry: Entry) -> tuple[Saved, dict[str, Float32]]:
        path = self.folder / entry.file
        data = _read(path)
        if len(data) != entry.bytes or crc32c_of(data) != entry.crc32c:
            raise StoreDamaged(
                f"{path} is damaged: {len(data)} bytes where the head names {entry.bytes}, or "
                "another checksum. Bring it back from a copy, or move the run's folder away."
            )
        with _understood(path):
            tensors, metadata = _parse_safetensors(data)
            return saved_from_json(metadata["saved"]), tensors

    def _sweep_leftovers(self) -> None:
        """Remove what no head names: older files, and what a kill left behind."""
        named = {"head.json", *(e.file for e in self._entries)}
        with contextlib.suppress(OSError):  # an old file too many does no harm
            for path in self.folder.iterdir():
                if path.name not in named:
                    path.unlink()


def _write_safetensors(
    path: Path, tensors: dict[str, Float32], metadata: dict[str, str]
) -> tuple[int, int]:
    """Write and sync a safetensors file without a copy of the tensors; (bytes, CRC-32C)."""
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": [tensor.size], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    crc, size = 0, 0
    with path.open("wb") as file:
        for part in (len(text).to_bytes(8, "little"), text, *(t.data for t in tensors.values())):
            view = memoryview(part).cast("B")
            file.write(view)
            crc = crc32c_of(view, crc)
            size += len(view)
        file.flush()
        os.fsync(file.fileno())
    return size, crc


def _parse_safetensors(data: bytes) -> tuple[dict[str, Float32], dict[str, str]]:
    """Views (read-only) of the tensors of a file whose checksum is right."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = cast(dict[str, Any], json.loads(data[8:start]))
    metadata = cast(dict[str, str], header.pop("__metadata__", {}))
    tensors: dict[str, Float32] = {}
    for name, row in header.items():
        begin, end = row["data_offsets"]
        tensors[name] = np.frombuffer(data, np.float32, (end - begin) // 4, start + begin)
    return tensors, metadata


def replace_file(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path``, sync, rename it over, sync the folder.

    Raises:
        StoreError: the disk refuses; ``path`` is as it was.
    """
    beside = path.with_name(path.name + ".new")
    with _writing(path):
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder that is still there after a power cut.

    Raises:
        StoreError: the disk refuses.
    """
    if not path.is_dir():
        if path.parent != path:
            make_folder(path.parent)
        with _writing(path):
            path.mkdir(exist_ok=True)
            _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _writing(path: Path) -> Generator[None]:
    """Turn a refusal of the disk into StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"Cannot write {path}: {error.strerror or error}. "
            "Free the disk or mend it, then start the service again; nothing published is lost."
        ) from error


@contextlib.contextmanager
def _understood(path: Path) -> Generator[None]:
    """Turn what is not of this version's form into StoreDamaged."""
    try:
        yield
    except (ValueError, LookupError, TypeError, InvalidRequest) as error:
        raise StoreDamaged(f"{path} is not of this version's form ({error}).") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreDamaged(f"Cannot read {path}: {error.strerror or error}.") from error
