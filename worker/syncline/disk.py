"""Bringing files to disk, so that what a rename names outlives a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def to_disk(path: Path) -> None:
    """Return when a file's bytes, or a folder's names, would outlive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
