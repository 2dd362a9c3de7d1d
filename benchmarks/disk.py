"""Waiting until the disk has nothing to do, so that what it does is in nobody else's figures.

A service removes what a revision replaces a moment after it was published, when nothing moves, and
with durability "async" writes it then. What is timed next would pay for that otherwise. Reads the
stores' heads and the names of files, and nothing else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from syncline_sync.core.record import KEPT

FILE = re.compile(r"r(\d{8})\.safetensors")
LIMIT_S, LOOK_S = 60.0, 0.02


class StillBusy(Exception):
    """The disk had something to do for too long."""


def wait_until_written(folder: Path, heads: str, revision: int) -> None:
    """Until the newest revision of every fragment is this one; ``heads`` is a pattern of files.

    Raises:
        StillBusy: it is not, within a minute.
    """

    def others() -> str:
        newest = {_newest(head) for head in folder.glob(heads)}
        return "" if newest == {revision} else f"Fragments were left at {sorted(newest)}."

    _wait_while(others)


def wait_until_removed(folder: Path, heads: str) -> None:
    """Until no fragment has more revisions than it keeps; ``heads`` is a pattern of their files.

    Raises:
        StillBusy: one has, for a minute.
    """

    def older() -> str:
        full = [h for h in folder.glob(heads) if len(list(h.parent.glob("r*"))) > KEPT]
        return f"Older revisions were left beside {full[0]}." if full else ""

    _wait_while(older)


def _wait_while(left: Callable[[], str]) -> None:
    """Until nothing is left to do: what is, in a sentence."""
    end = time.monotonic() + LIMIT_S
    while what := left():
        if time.monotonic() > end:
            raise StillBusy(what)
        time.sleep(LOOK_S)


def _newest(head: Path) -> int:
    return max(map(int, FILE.findall(head.read_text())), default=-1)
