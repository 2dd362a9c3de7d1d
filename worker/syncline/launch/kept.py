"""The checkpoints in a folder or an object store, read from here: no service is asked.

So they can be found, looked at and exported when nothing else is left of a run. This machine needs
the credentials to read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

from syncline_proto.codec import crc32c
from syncline_proto.depot import Depot, Moved
from syncline_proto.errors import CheckpointDamaged, CheckpointError
from syncline_proto.manifest import MANIFEST, Entry, Manifest, check_file
from syncline_proto.names import valid_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One checkpoint, as far as it can be read."""

    name: str
    url: str
    run: str | None = None
    revision: int | None = None
    committed_tokens: int | None = None
    created_at: float | None = None
    bytes: int | None = None
    damage: str | None = None
    """What is wrong with it, in a sentence; None: nothing that was looked at."""


def opened(url: str) -> tuple[Depot, Manifest]:
    """A checkpoint by its address, whose last part is its name.

    Raises:
        InvalidRequest, ConfigError: it is no such address, or its store cannot be read here.
        CheckpointError: there is none.
        CheckpointDamaged: its manifest is damaged.
    """
    depot = Depot.at(url)
    return depot, depot.manifest()


def listed(url: str, *, check: bool, moved: Moved) -> list[Kept]:
    """The checkpoints in a folder, the newest last; with ``check`` every byte of them is read.

    Those whose manifest does not say when they were taken come first.

    Raises:
        InvalidRequest, ConfigError: it is no such address, or its store cannot be read here.
        CheckpointError: there is no such folder, it is a checkpoint itself, or the store refuses.
    """
    above = Depot(url)
    found = [(name, above.below(name)) for name in above.folders() if valid_name(name)]
    looked_at = [
        _looked_at(depot, name, check, moved) for name, depot in found if MANIFEST in depot.sizes()
    ]
    if not looked_at and MANIFEST in above.sizes():
        place = url.rstrip("/").rpartition("/")[0]
        raise CheckpointError(f"{url} is a checkpoint itself; list {place or '/'}.")
    return sorted(looked_at, key=lambda one: one.created_at or 0.0)


def read(depot: Depot, entry: Entry, moved: Moved) -> bytes:
    """One fragment's file, checked.

    Raises:
        CheckpointDamaged: it is not what the manifest says; it is named.
        CheckpointError: the store refuses.
    """
    data = BytesIO()
    for piece in depot.pieces(entry.file):
        data.write(piece)
        moved(len(piece))
    whole = data.getvalue()
    check_file(f"{depot.url}/{entry.file}", entry, len(whole), crc32c(whole))
    return whole


def _looked_at(depot: Depot, name: str, check: bool, moved: Moved) -> Kept:
    try:
        manifest = depot.manifest()
    except CheckpointDamaged as error:
        return Kept(name=name, url=depot.url, damage=error.message)
    return Kept(
        name=name,
        url=depot.url,
        run=manifest.run,
        revision=manifest.revision,
        committed_tokens=manifest.committed_tokens,
        created_at=manifest.created_at,
        bytes=manifest.bytes,
        damage=_damage(depot, manifest, check, moved),
    )


def _damage(depot: Depot, manifest: Manifest, check: bool, moved: Moved) -> str | None:
    """What the first damaged file has, in a sentence."""
    sizes = depot.sizes()
    try:
        for entry in manifest.entries:
            if entry.file not in sizes:
                return f"{depot.url}/{entry.file} is missing."
            crc = _sum(depot, entry, moved) if check else entry.crc32c
            check_file(f"{depot.url}/{entry.file}", entry, sizes[entry.file], crc)
    except CheckpointError as error:
        return error.message
    return None


def _sum(depot: Depot, entry: Entry, moved: Moved) -> int:
    crc = 0
    for piece in depot.pieces(entry.file):
        crc = crc32c(piece, crc)
        moved(len(piece))
    return crc
