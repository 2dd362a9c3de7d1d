"""Waiting until the disk has nothing to do, so that what it does is in nobody else's figures.

A service removes what a revision replaces a moment after it was published, when nothing moves, and
with durability "async" writes it then. What is timed next would pay for that otherwise. Reads the
stores' heads and the names of files, and nothing else.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

KEPT = 2
"""Revisions of a fragment that stay in its folder."""

FILE = re.compile(r"r(\d{8})\.safetensors")
LIMIT_S, LOOK_S = 60.0, 0.02


class NotWritten(Exception):
    """It took too long."""


def wait_until_written(folder: Path, heads: str, revision: int) -> None:
    """Until the newest revision of every fragment is this one; ``heads`` is a pattern of files.

    Raises:
        NotWritten: it is not, within a minute.
    """
    end = time.monotonic() + LIMIT_S
    while (newest := {_newest(head) for head in folder.glob(heads)}) != {revision}:
        if time.monotonic() > end:
            raise NotWritten(f"Fragments were left at {sorted(newest)} on the disk.")
        time.sleep(LOOK_S)


def wait_until_removed(folder: Path, heads: str) -> None:
    """Until no fragment has more files than it keeps; ``heads`` is a pattern of theirs.

    Raises:
        NotWritten: one has, for a minute.
    """
    end = time.monotonic() + LIMIT_S
    while any(len(list(head.parent.glob("r*"))) > KEPT for head in folder.glob(heads)):
        if time.monotonic() > end:
            raise NotWritten("Older revisions were left on the disk.")
        time.sleep(LOOK_S)


def _newest(head: Path) -> int:
    return max(map(int, FILE.findall(head.read_text())), default=-1)
