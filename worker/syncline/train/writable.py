"""Folders to write to: seen before anything that takes long. Loads nothing heavy."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from syncline_proto.errors import ConfigError

if TYPE_CHECKING:
    from syncline.train.config import JobConfig

KEPT = ("runs", "pinned", "restoring")
"""The folders of a sync service's store, all beside its lock; a start sweeps some of them."""


def make_folders(job: JobConfig) -> None:
    """Make the folders for checkpoints and export.

    Raises:
        ConfigError: one cannot be written.
    """
    for key, folder in (
        ("checkpoint.folder", job.checkpoint.folder),
        ("export.folder", job.export.folder),
    ):
        if folder is not None:
            _make_writable(folder, f"{key}: cannot write to")


def check_not_stored(folder: Path) -> None:
    """Refuse a folder in which a sync service keeps its runs.

    Raises:
        ConfigError: it is one, or in one, of a store that was ever opened here.
    """
    found = Path(os.path.realpath(folder))
    for above in (found, *found.parents):
        if above.name in KEPT and (above.parent / "lock").is_file():
            raise ConfigError(
                f"The folder {folder} is in the store of a sync service; choose another folder."
            )


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, before anything that takes long; it is not left.

    Raises:
        ConfigError: it is none; the sentence says why.
    """
    made: list[Path] = []
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        _make_writable(folder, "cannot export to")
    finally:
        for path in made:
            with suppress(OSError):  # it is not there, or somebody else has taken it meanwhile
                path.rmdir()


def _make_writable(folder: Path, cannot: str) -> None:
    """Make a folder, if it is not there.

    Raises:
        ConfigError: it cannot be made, or not be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileExistsError:
        raise ConfigError(f"{cannot} {folder}: it is a file; choose a folder.") from None
    except OSError as error:
        raise ConfigError(
            f"{cannot} {folder}: {error.strerror}; choose a folder that can be written."
        ) from None
