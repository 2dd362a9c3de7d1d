"""The store: every committed round as an immutable file, and heads that name what counts.

    ROOT/runs/RUN/run.json                        settings, epoch-free facts of the run
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from syncline_proto.codec import Float32, crc32c_of
from syncline_proto.errors import StoreDamaged, StoreError
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

    ``older`` are the parameters of the revision before (None at revision 0); ``gradients`` the
    kept mean gradients by step, only in the synchronous phase.
    """

    saved: Saved
    parameters: Float32
    momentum: Float32
    older: Float32 | None
    gradients: Mapping[int, Float32]


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
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / "layout.json", layout_to_json(layout).encode())

    def load_layout(self) -> Layout:
        return layout_from_json(_read(self.folder / "layout.json").decode())

    def save_settings(self, settings: RunSettings) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / "run.json", settings.model_dump_json(indent=1).encode())

    def load_settings(self) -> RunSettings:
        return RunSettings.model_validate_json(_read(self.folder / "run.json"))

    def fragment(self, number: int) -> FragmentStore:
        return FragmentStore(self.folder / f"{number:05d}")


class FragmentStore:
    """The files of one fragment. Not for two writers at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: list[Entry] = []

    def commit(self, saved: Saved, parameters: Float32, momentum: Float32) -> None:
        """Make a revision durable: its parameters, momentum and everything remembered."""
        name = f"r{saved.revision:08d}.safetensors"
        tensors = {"parameters": parameters, "momentum": momentum}
        # Mean gradients end with the synchronous phase: revision 1 and later name none.
        kept = [e for e in self._entries if not e.gradient_step][: KEPT - 1]
        self._commit(name, tensors, saved, Entry(name, saved.revision, 0, 0, 0), kept)

    def commit_gradient(self, saved: Saved, gradient: Float32) -> None:
        """Make a mean gradient durable; the parameters' file stays as it is."""
        name = f"g{saved.gradient_step:08d}.safetensors"
        gradients = [e for e in self._entries if 0 < e.gradient_step < saved.gradient_step]
        kept = gradients[: KEPT - 1] + [e for e in self._entries if not e.gradient_step]
        entry = Entry(name, saved.revision, saved.gradient_step, 0, 0)
        self._commit(name, {"gradient": gradient}, saved, entry, kept)

    def load(self) -> Loaded | None:
        """Read what the head names; None if nothing was ever committed.

        Raises:
            StoreDamaged: a file is missing, short, or fails its checksum; the message names it.
        """
        self._sweep_leftovers()
        head = self.folder / "head.json"
        if not head.exists():
            return None
        try:
            rows = cast(list[dict[str, Any]], json.loads(_read(head))["files"])
            self._entries = [Entry(**row) for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamaged(f"{head} is not a head of this version ({error}).") from error
        revisions = [e for e in self._entries if not e.gradient_step]
        newest, metadata = self._read(revisions[0])
        gradients: dict[int, Float32] = {}
        for entry in reversed([e for e in self._entries if e.gradient_step]):
            tensors, metadata = self._read(entry)
            gradients[entry.gradient_step] = tensors["gradient"]
        older = self._read(revisions[1])[0]["parameters"] if len(revisions) > 1 else None
        saved = saved_from_json(metadata["saved"])
        return Loaded(saved, newest["parameters"], newest["momentum"], older, gradients)

    def _commit(
        self,
        name: str,
        tensors: dict[str, Float32],
        saved: Saved,
        entry: Entry,
        kept: list[Entry],
    ) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / name
            size, crc = _write_safetensors(path, tensors, {"saved": saved_to_json(saved)})
            written = Entry(name, entry.revision, entry.gradient_step, size, crc)
            entries = [written, *(e for e in kept if e.file != name)]
            rows = [
                {
                    "file": e.file,
                    "revision": e.revision,
                    "gradient_step": e.gradient_step,
                    "bytes": e.bytes,
                    "crc32c": e.crc32c,
                }
                for e in entries
            ]
            replace_file(self.folder / "head.json", json.dumps({"files": rows}).encode())
        except OSError as error:
            raise StoreError(
                f"Cannot write {self.folder / name}: {error.strerror or error}. "
                "Free the disk or mend it, then start the service again; nothing published is lost."
            ) from error
        gone = {e.file for e in self._entries} - {e.file for e in entries}
        self._entries = entries
        for file in gone:
            (self.folder / file).unlink(missing_ok=True)

    def _read(self, entry: Entry) -> tuple[dict[str, Float32], dict[str, str]]:
        path = self.folder / entry.file
        data = _read(path)
        if len(data) != entry.bytes or crc32c_of(data) != entry.crc32c:
            raise StoreDamaged(
                f"{path} is damaged: {len(data)} bytes where the head names {entry.bytes}, or "
                "another checksum. Bring it back from a copy, or move the run's folder away."
            )
        return _parse_safetensors(data)

    def _sweep_leftovers(self) -> None:
        """Remove what a kill left behind: files that no head names."""
        if not self.folder.exists():
            return
        named = {"head.json"}
        with contextlib.suppress(OSError, ValueError, KeyError):
            named |= {row["file"] for row in json.loads(_read(self.folder / "head.json"))["files"]}
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
    """Write ``data`` beside ``path``, sync, rename it over, sync the folder."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreDamaged(f"Cannot read {path}: {error.strerror or error}.") from error
