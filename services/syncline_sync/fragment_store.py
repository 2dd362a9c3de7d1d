"""The files of one fragment: what a commit writes, what its head names, what is read from them.

Where they lie, and what is true of them at any kill, store.py says. Knows nothing of rounds.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import structlog

from syncline_proto.codec import Float32, UInt16
from syncline_proto.errors import CheckpointError, RevisionGone, StoreDamaged
from syncline_proto.reports import RoundReport
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import KEPT, Saved
from syncline_sync.entries import REVISION, Entry, Loaded, Place, check_arrays
from syncline_sync.files import (
    MEND,
    SEAL,
    Array,
    Tensor,
    array_of,
    arrays_of,
    checksum_of,
    is_there,
    make_folder,
    make_mark,
    read,
    reading,
    replace_file,
    understood,
    write_safetensors,
)
from syncline_sync.saved import reports_from_json, saved_from_json, saved_to_json
from syncline_sync.sources import Filed
from syncline_sync.word import Word

log = structlog.get_logger()

HEAD, BEFORE = "head.json", "head.before.json"
"""What names the files that count; and the one before it, for who has to go back from it."""


class FragmentStore:
    """The files of one fragment. Not for two writers at once."""

    def __init__(self, folder: Path, place: Place, beside: int = 0) -> None:
        """``beside``: elements of the fragments whose files lie beside it on the disk."""
        self.folder, self.place, self.beside = folder, place, beside
        self._begun = folder.with_name(folder.name + ".begun")
        self._behind = folder.with_name(folder.name + ".behind")
        self._entries: list[Entry] = []
        self._stuck: set[str] = set()
        """What could not be removed: it is told once, and left."""

    @property
    def is_behind(self) -> bool:
        """Whether somebody has seen, or may have, a revision that was not committed."""
        return is_there(self._behind)

    def fall_behind(self) -> None:
        """Say, for who comes after a kill, that revisions are published before their commit."""
        make_mark(self._behind)

    def catch_up(self) -> None:
        """Say that all that was published is here, or that who has seen more is refused."""
        with contextlib.suppress(OSError):  # to say it in vain costs replicas a pull, and no more
            self._behind.unlink(missing_ok=True)

    def commit(
        self,
        saved: Saved,
        parameters: Float32,
        momentum: Float32,
        published: UInt16 | None = None,
        reports: Sequence[str] = (),
    ) -> None:
        """Make a revision durable: its parameters, momentum and everything remembered.

        ``published`` is for int8 down: bf16 as bits, the value from which the next one follows.
        ``reports`` of rounds are JSON, for a start that has to tell them again. What it replaces
        is left to ``sweep``, where the disk has room meanwhile: to remove a long file takes a fifth
        as long as to write one.
        """
        name = self._unused(f"r{saved.revision:08d}")
        tensors: dict[str, Tensor] = {"parameters": parameters, "momentum": momentum}
        if published is not None:
            tensors["published"] = published
        # Mean gradients and offers end with the synchronous phase: no later revision names any.
        kept = [e for e in self._entries if not e.alone][: KEPT - 1]
        self._commit(tensors, saved, Entry(name, saved.revision, 0, 0, 0), kept, reports)
        if not self._has_room():
            self.sweep()

    def commit_gradient(self, saved: Saved, gradient: Float32, reports: Sequence[str] = ()) -> None:
        """Make a mean gradient durable; the parameters' file stays as it is."""
        name = self._unused(f"g{saved.gradient_step:08d}")
        mine = [e for e in self._entries if e.alone == "gradient"]
        gradients = [e for e in mine if e.gradient_step < saved.gradient_step]
        kept = gradients[: KEPT - 1] + [e for e in self._entries if not e.alone]
        entry = Entry(name, saved.revision, saved.gradient_step, 0, 0)
        self._commit({"gradient": gradient}, saved, entry, kept, reports)
        self.sweep()

    def commit_offer(self, saved: Saved, parameters: Float32) -> None:
        """Make an offer durable, beside all that is there; the next commit takes it away."""
        name = self._unused(f"o{saved.phase:08d}")
        kept = [e for e in self._entries if e.alone != "offer"]
        entry = Entry(name, saved.revision, saved.gradient_step, 0, 0)
        self._commit({"offer": parameters}, saved, entry, kept)
        self.sweep()

    def sweep(self) -> None:
        """Remove what no head names: older files, and what a kill left behind.

        As much a writer as a commit: what that writes has no name yet.
        """
        named = {HEAD, BEFORE, *(e.file for e in self._entries)}
        for path in (self.folder / name for name in self._names()):
            if path.name in named or path.name in self._stuck:
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # one too many does no harm
                self._stuck.add(path.name)
                log.warning("cannot remove an old file", file=str(path), why=error.strerror)

    def filed(self, saved: Saved, codec: pb.Codec.ValueType, *, is_gradient: bool = False) -> Filed:
        """A committed revision (or mean gradient) as a source for pulls; ``codec`` is the pulls'.

        Raises:
            RevisionGone: it is not kept.
        """
        step, alone = (saved.gradient_step, "gradient") if is_gradient else (0, None)
        array = alone or ("published" if saved.is_by_difference else "parameters")
        for entry in self._entries:
            if (entry.revision, entry.gradient_step, entry.alone) == (saved.revision, step, alone):
                return Filed(self.folder / entry.file, entry.bytes, entry.crc32c, array, codec)
        raise RevisionGone(f"{self.folder} has no revision {saved.revision}, step {step}.")

    def pin(self, revision: int, path: Path) -> Entry:
        """Keep a committed revision's file as ``path``, too, whatever becomes of it here.

        Raises:
            RevisionGone: it is not kept.
            CheckpointError: the disk refuses; nothing of the fragment has changed.
        """
        for entry in self._entries:
            if entry.revision == revision and not entry.alone:
                try:
                    os.link(self.folder / entry.file, path)
                    return entry
                except FileNotFoundError:
                    break  # a commit was quicker
                except OSError as error:
                    raise CheckpointError(
                        f"Cannot pin {self.folder / entry.file}: {error.strerror or error}."
                    ) from error
        raise RevisionGone(f"{self.folder} has no revision {revision} any more.")

    def load(self) -> Loaded | None:
        """Read what the head names; None if nothing was ever committed.

        Older files are checked, and their arrays stay on the disk.

        Raises:
            StoreDamaged: a file is missing, short, or fails its checksum, or another fragment's or
                revision's; the message names it.
        """
        entries = self.head()
        if entries is None:
            return None
        saved: dict[str | None, tuple[Saved, ...]] = {}
        arrays: dict[str, Tensor] = {}
        reports: tuple[RoundReport, ...] = ()
        for entry in entries:
            newer = saved.get(entry.alone, ())
            try:
                one, found, beside = self._read(entry, with_arrays=not newer)
            except StoreDamaged as error:
                raise StoreDamaged(f"{error.message}{self._way_out(entry, entries)}") from error
            saved[entry.alone] = (one, *newer)
            arrays |= found
            reports = reports or beside  # an offer has none
        self._entries = entries
        offers = [(one, cast(Float32, arrays["offer"])) for one in saved.get("offer", ())]
        return Loaded(
            revisions=saved[None],
            parameters=cast(Float32, arrays["parameters"]),
            momentum=cast(Float32, arrays["momentum"]),
            published=cast(UInt16 | None, arrays.get("published")),
            gradients=saved.get("gradient", ()),
            gradient=cast(Float32 | None, arrays.get("gradient")),
            offer=offers[-1] if offers else None,
            reports=reports,
        )

    def head(self) -> list[Entry] | None:
        """The files that count, newest first, a revision among them; None before any commit.

        Raises:
            StoreDamaged: it is damaged or lost; the message says what there is to go back to.
        """
        head = self.folder / HEAD
        begun = is_there(self._begun)
        if not is_there(head):
            if begun or is_there(self.folder / BEFORE):
                said = f"{head} is missing, but the fragment has begun. {MEND}"
                raise StoreDamaged(f"{said}{self._way_back()}")
            return None
        try:
            return _named_by(head)
        except StoreDamaged as error:
            raise StoreDamaged(f"{error.message}{self._way_back()}") from error

    def before(self) -> list[Entry]:
        """What the head before the newest named, as ``head``, if a run can go on from that.

        Nothing where nobody can tell, where either is of the synchronous phase, or where the head
        is a folder, which nothing can replace.
        """
        is_synchronous = any(name.startswith(("g", "o")) for name in self._names())
        if is_synchronous or (self.folder / HEAD).is_dir():
            return []
        try:
            entries = _named_by(self.folder / BEFORE)
        except StoreDamaged:
            return []
        return [] if any(entry.alone for entry in entries) else entries

    @property
    def lost(self) -> int:
        """The newest revision that a head may have named of which only ``before`` is known.

        It may never have been published: a kill leaves files that no head names.
        """
        named = [entry.revision + 1 for entry in self.before()]
        found = map(REVISION.match, self._names())
        return max([*named, *(int(one[1]) for one in found if one)], default=0)

    @property
    def newest(self) -> int | None:
        """The newest revision that its head names; as ``head``."""
        entries = self.head() or ()
        return next((entry.revision for entry in entries if not entry.alone), None)

    def name(self, entries: list[Entry], *, keeps_before: bool = True) -> None:
        """Let these files, newest first, be the ones that count, in one step.

        The head that said so stays as the one before, unless what it named is given up: then that,
        too, names these, and first, since a kill may come in between.
        """
        head = SEAL.close(json.dumps({"files": [asdict(e) for e in entries]}))
        before = self.folder / BEFORE
        if not keeps_before:
            replace_file(before, head)
        replace_file(self.folder / HEAD, head, before if keeps_before else None)
        self._entries = entries

    def saved_in(self, entry: Entry) -> Saved | None:
        """What was saved in its file; None: that is not what was committed, to the bit. Heavy."""
        try:
            return self._read(entry, with_arrays=False)[0]
        except StoreDamaged:
            return None

    def _names(self) -> list[str]:
        with contextlib.suppress(OSError):
            return [path.name for path in self.folder.iterdir()]
        return []

    def _way_out(self, damaged: Entry, entries: list[Entry]) -> str:
        """What an operator may say where one of several revisions is damaged."""
        if sum(not e.alone for e in entries) < KEPT:
            return ""
        return (
            f" Or start it with --fall-back {Word(self.place.run, damaged.revision)}: the run then "
            "goes on from what is whole, which may be the revision before."
        )

    def _way_back(self) -> str:
        """What an operator may say where the head is damaged or lost."""
        if not self.before():
            return ""
        return (
            f" Or start it with --fall-back {Word(self.place.run, self.lost)}: the run then goes "
            f"on from what {BEFORE} names, if that is whole."
        )

    def _commit(
        self,
        tensors: Mapping[str, Tensor],
        saved: Saved,
        entry: Entry,
        kept: list[Entry],
        reports: Sequence[str] = (),
    ) -> None:
        if not self._entries:  # what has begun is never begun anew: its folder is there, or lost
            make_folder(self.folder)
        self.sweep()  # room on the disk first: a kill may have left whole files
        metadata = {**self.place.metadata(), "saved": saved_to_json(saved, reports)}
        size, crc = write_safetensors(self.folder / entry.file, tensors, metadata)
        entries = [replace(entry, bytes=size, crc32c=crc), *kept]
        self.name(entries)
        make_mark(self._begun)

    def _has_room(self) -> bool:
        """Whether the disk takes another file of each fragment, before any is removed."""
        files = 1.0 + self.beside / max(1, self.place.numel)
        try:
            disk = os.statvfs(self.folder)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize >= files * self._entries[0].bytes

    def _unused(self, stem: str) -> str:
        """A file name that the head does not name: what counts is never written over.

        A synchronous phase that starts again counts its steps from 1 once more.
        """
        named = {e.file for e in self._entries}
        tries = (f"{stem}{f'.{i}' if i else ''}.safetensors" for i in range(len(named) + 1))
        return next(name for name in tries if name not in named)

    def _read(
        self, entry: Entry, *, with_arrays: bool
    ) -> tuple[Saved, dict[str, Tensor], tuple[RoundReport, ...]]:
        """Check a file and read what was saved in it; its arrays and reports only if wanted."""
        path = self.folder / entry.file
        with reading(path) as file:
            if (size := os.fstat(file).st_size) != entry.bytes:  # it may be of any length
                said = f"{size} bytes where the head names {entry.bytes}"
                raise StoreDamaged(f"{path} is damaged: {said}. {MEND}")
            size, crc = checksum_of(file)
            if (size, crc) != (entry.bytes, entry.crc32c):
                said = f"its {size} bytes have another checksum than the head names"
                raise StoreDamaged(f"{path} is damaged: {said}. {MEND}")
            with understood(path):
                arrays, metadata = arrays_of(file)
                saved = saved_from_json(text := metadata.pop("saved"))
                self._check(entry, saved, arrays, metadata)
                wanted = arrays if with_arrays else {}
                found = {name: array_of(file, array) for name, array in wanted.items()}
                return saved, found, reports_from_json(text) if with_arrays else ()

    def _check(
        self, entry: Entry, saved: Saved, arrays: dict[str, Array], metadata: dict[str, str]
    ) -> None:
        """Check that a file is what its head says, and this fragment's.

        Raises:
            ValueError: it is not.
        """
        if metadata != self.place.metadata():
            raise ValueError(f"it is of {metadata}, not of {self.place.metadata()}")
        step = entry.gradient_step
        if saved.revision != entry.revision or (step and saved.gradient_step != step):
            raise ValueError("it is of another revision or step than the head names")
        check_arrays(arrays, saved, self.place.numel, entry.alone)


def _named_by(head: Path) -> list[Entry]:
    """The files that a head names, newest first, a revision among them.

    Raises:
        StoreDamaged: it is damaged or missing.
    """
    with understood(head):
        rows = cast(list[dict[str, Any]], json.loads(SEAL.open(read(head)))["files"])
        entries = [Entry.of(row) for row in rows]
        if all(entry.alone for entry in entries):
            raise ValueError("it names no revision")
        return entries
