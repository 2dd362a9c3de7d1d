"""Folders to write to, and bringing files to disk: what a rename names outlives a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def to_disk(path: Path) -> None:
    """Return when a file's bytes, or a folder's names, would outlive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_writable(folder: Path) -> None:
    """Make a folder, if it is not there.

    Raises:
        OSError: it cannot be made, or not be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
