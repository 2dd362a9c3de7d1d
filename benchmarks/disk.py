"""Waiting until what was published first is written, so that it is in nobody else's figures.

With durability "async" a service writes a revision a moment after it was published, when nothing
moves. What is timed next would pay for that otherwise. Reads the stores' heads and nothing else.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

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


def _newest(head: Path) -> int:
    return max(map(int, FILE.findall(head.read_text())), default=-1)
