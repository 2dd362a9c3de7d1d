"""Where checkpoints lie: a directory, or an object store, through fsspec.

Bytes come and go in pieces, so that nobody holds a whole file; a file of a directory is on the disk
before it counts. Credentials are the process's own, as the store's library finds them. Knows
nothing of runs. All methods wait for a disk or a network: never on an event loop.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from syncline_proto.errors import (
    CheckpointDamaged,
    CheckpointError,
    ConfigError,
    InvalidRequest,
    SynclineError,
)
from syncline_proto.manifest import (
    FILE_PATTERN,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    Manifest,
    unsealed,
)
from syncline_proto.names import NAME_WORDS, valid_name

# fsspec has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

PIECE_BYTES = 1 << 20
PART_BYTES = 8 << 20
"""Of an upload to an object store, and read ahead; it wants at least 5 MiB and at most 10,000."""

Moved: TypeAlias = Callable[[int], None]
"""Is told of the bytes of each piece that a copy has moved; may raise, to end it."""

URL_CHARACTERS_MAX = 2048

EXTRA = {"s3": "syncline[s3]", "gs": "gcsfs", "az": "adlfs"}
"""What to install for the URLs that begin so. No others: http:// and the like are no stores."""


class Depot:
    """One folder of a store: a checkpoint's, or one that holds checkpoints.

    Raises (every method):
        CheckpointError: the store refuses, or does not answer.
    """

    def __init__(self, url: str) -> None:
        """``url`` is an absolute path, or one with a scheme.

        Raises:
            InvalidRequest: it is neither, or of a kind that holds no checkpoints.
            ConfigError: what this kind of store needs is not installed here.
        """
        check_url(url)
        self.url = url.rstrip("/")
        scheme, mark, _ = url.partition("://")
        self._is_local = not mark
        self._files: Any = _file_system(self.url or "/", scheme)
        self._path = self.url if self._is_local else str(self._files._strip_protocol(self.url))

    @classmethod
    def at(cls, url: str) -> Depot:
        """A checkpoint's folder, by an address whose last part is the checkpoint's name.

        Raises:
            InvalidRequest, ConfigError: it is no such address, or of a store that is not for here.
        """
        check_url(url)
        above, _, name = url.rstrip("/").rpartition("/")
        if above.endswith(":/") or not valid_name(name):
            raise InvalidRequest(
                f"url: {url[:200]!r} does not end in the name of a checkpoint ({NAME_WORDS})."
            )
        return cls(url)

    def shares_disk(self, folder: Path) -> bool:
        """Whether it is a directory, be it there or still to be made, on the disk of ``folder``."""
        if not self._is_local:
            return False
        with self._told():
            place = Path(self._path)
            there = next(one for one in (place, *place.parents) if one.exists())
            return there.stat().st_dev == folder.stat().st_dev

    def below(self, name: str) -> Depot:
        """The folder ``name`` in this one.

        Raises:
            InvalidRequest: this is no name of a checkpoint.
        """
        if not valid_name(name):
            raise InvalidRequest(f"checkpoint: {name[:80]!r} is not a name ({NAME_WORDS}).")
        return Depot(f"{self.url}/{name}")

    def folders(self) -> list[str]:
        """The names of the folders in it, sorted."""
        with self._told():
            if self._is_local and os.path.isfile(self._path):  # listed as what is in it
                raise CheckpointError(f"{self.url} is a file, and no folder of checkpoints.")
            return sorted(row[0] for row in self._rows() if row[1] == "directory")

    def sizes(self) -> dict[str, int]:
        """The files in it with their bytes; none if it is not there."""
        with self._told():
            try:
                return {name: size for name, kind, size in self._rows() if kind == "file"}
            except FileNotFoundError:
                return {}

    def size(self, name: str) -> int:
        """A file's bytes."""
        with self._told(name):
            return int(self._files.info(f"{self._path}/{name}")["size"])

    def pieces(self, name: str) -> Iterator[bytes]:
        """A file's bytes, in order."""
        with self._told(name), self._open(name, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def manifest(self) -> Manifest:
        """The manifest of the checkpoint that this folder is.

        Raises:
            CheckpointError: there is none.
            CheckpointDamaged: it is damaged.
        """
        data = b""
        try:
            for piece in self.pieces(MANIFEST):
                data += piece
                if len(data) > MANIFEST_BYTES_MAX:
                    raise CheckpointDamaged(f"{self.url}/{MANIFEST} is too long for a manifest.")
        except CheckpointDamaged:
            raise
        except CheckpointError:
            if MANIFEST in self.sizes():
                raise
            raise self._no_checkpoint() from None
        return unsealed(data, f"{self.url}/{MANIFEST}")

    def _no_checkpoint(self) -> CheckpointError:
        """What there is in the place of a manifest, which is not there."""
        if any(re.fullmatch(FILE_PATTERN, name) for name in self.sizes()):
            return CheckpointError(
                f"{self.url} is no whole checkpoint: it has no {MANIFEST}, which is written last. "
                "Its save goes on, or has failed; save it again under this name."
            )
        self.folders()  # of one that is not there, this says so
        return CheckpointError(
            f"{self.url} is no checkpoint: there is no {MANIFEST} in it; "
            "`syncline checkpoints ls` lists those that are in a folder."
        )

    def put(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a file in one step, over one that is there; on failure that one stays."""
        with self._told(name, writing=True):
            if self._is_local:
                _put(Path(self._path, name), pieces)
            else:
                self._upload(name, pieces)

    def create(self, name: str, data: bytes) -> None:
        """Write a file that must not be there yet, whole or not at all.

        Raises:
            FileExistsError: it is there.
        """
        with self._told(name, writing=True, creating=True):
            if self._is_local:
                _create(Path(self._path, name), data)
            else:
                self._files.pipe_file(f"{self._path}/{name}", data, mode="create")

    def settle(self) -> None:
        """Make the names of what is there outlast a power cut; an object store's do already."""
        with self._told(writing=True):
            if self._is_local:
                _sync_folder(Path(self._path))

    def _upload(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        file = self._open(name, "wb")
        try:
            for piece in pieces:
                file.write(piece)
            file.close()
        except BaseException:
            with contextlib.suppress(Exception):  # what has not been closed is no file
                file.discard()
            file.closed = True  # or its end would take what came for the whole
            raise

    def _open(self, name: str, mode: str) -> Any:
        return self._files.open(f"{self._path}/{name}", mode, block_size=PART_BYTES)

    def _rows(self) -> list[tuple[str, str, int]]:
        """(name, "file" or "directory", bytes) of what is in the folder.

        Raises:
            FileNotFoundError: it is not there; and whatever else the store raises.
        """
        own = self._path.rstrip("/")
        rows = self._files.ls(self._path or "/", detail=True)
        named = [(str(row["name"]).rstrip("/"), row) for row in rows]
        return [
            (path.rpartition("/")[2], str(row["type"]), int(row["size"] or 0))
            for path, row in named
            if path != own  # an object store may list the folder's own mark
        ]

    @contextlib.contextmanager
    def _told(
        self, name: str = "", *, writing: bool = False, creating: bool = False
    ) -> Generator[None]:
        """Turn what a store raises into CheckpointError, or what its checksums are into damage.

        ``creating``: but for FileExistsError, which says that somebody else was first.
        """
        where = f"{self.url}/{name}" if name or not self.url else self.url
        try:
            yield
        except SynclineError:
            raise
        except FileNotFoundError:
            if writing:
                raise CheckpointError(
                    f"{self.url} cannot be written, since its bucket or folder is not there; "
                    "make it, or choose another place."
                ) from None
            hint = "." if name else "; check the address."
            raise CheckpointError(f"{where} is not there{hint}") from None
        except Exception as error:  # each store's library has errors of its own
            if creating and isinstance(error, FileExistsError):
                raise
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            said = " ".join(str(why).split())[:300].rstrip(".")
            if "checksum" in type(error).__name__.lower() and not writing:
                raise CheckpointDamaged(
                    f"{where} is damaged, or was on its way here ({said}); try again."
                ) from error
            may_pass = not (self._is_local or isinstance(error, PermissionError))
            again = "try again, or " if may_pass else ""
            if writing:
                said = f"it cannot be written ({said}); {again}choose another place"
            else:
                said = f"{said}; {again}check the address, and who may use it"
            raise CheckpointError(f"{where}: {said}.") from error


def check_url(url: str) -> None:
    """Refuse what is no address of a folder of checkpoints.

    Raises:
        InvalidRequest: it is neither an absolute path nor of a kind that holds checkpoints.
    """
    head, mark, rest = url.partition("://")
    scheme = head if mark else None
    if len(url) > URL_CHARACTERS_MAX or not url.isprintable() or "::" in url:
        raise InvalidRequest(f"url: {url[:200]!r} is no address of a folder.")
    if scheme is None and (not url.startswith("/") or ".." in url.split("/")):
        raise InvalidRequest(f"url: {url[:200]!r} is no absolute path, and no URL.")
    if scheme == "file":
        raise InvalidRequest(f"url: write a directory as its plain path, not {url[:200]!r}.")
    if scheme is not None and scheme not in EXTRA:
        known = ", ".join(f"{one}://" for one in EXTRA)
        raise InvalidRequest(f"url: {url[:200]!r} is not a directory, nor one of {known}.")
    if scheme is not None and not rest.strip("/"):
        raise InvalidRequest(f"url: {url[:200]!r} names no bucket.")


def _file_system(url: str, scheme: str) -> Any:
    """fsspec's, without a memory of what was listed: others write there, too."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(url, use_listings_cache=False)[0]
    except ImportError:
        raise ConfigError(
            f"{scheme}:// needs a package that is not installed where {url} is to be used: "
            f"pip install '{EXTRA[scheme]}'"
        ) from None
    except Exception as error:  # each store's library has errors of its own
        raise CheckpointError(f"{url}: {str(error)[:300] or type(error).__name__}") from error


def _put(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file beside its place, and move it there once it is on the disk."""
    was_there = path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{uuid.uuid4().hex}.half")
    try:
        with half.open("xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # what no manifest names does no harm
            half.unlink(missing_ok=True)
            if not was_there:
                path.parent.rmdir()  # unless another has put something in it
        raise


def _create(path: Path, data: bytes) -> None:
    """Write a file that must not be there, so that it is whole even after a power cut.

    And so that it is found then, with all that is beside it: the names of those come first, and of
    every folder above, whoever made it; one who was killed may have made it a moment ago.
    """
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        for folder in path.parents:
            _sync_folder(folder)
            if folder.is_mount():
                break
        os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    """Make the names in a folder outlast a power cut; of one that we may not read, none is ours."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
