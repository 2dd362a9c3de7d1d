"""File descriptors: how many we may have, and patience where none is left.

That none is left is neither the disk's fault nor ours: connections hold them, and those that say
nothing are closed sooner than the patience here ends. Knows nothing of what is opened.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from syncline_proto.descriptors import ENDLESS, none_left
from syncline_sync.durability import MORE_FILES, StoreRefuses

WAIT_S = 15.0
"""How long a file waits for one; within the time that the end of the process has for the disk."""

LOOK_S = 0.1
"""Between two tries."""

T = TypeVar("T")


def limit() -> int:
    """How many this process may have open at a time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENDLESS if soft == resource.RLIM_INFINITY else min(soft, ENDLESS)


def opened(path: Path, how: Callable[[], T]) -> T:
    """Open ``path``; where no descriptor is left, wait for one.

    Raises:
        StoreRefuses: none came within ``WAIT_S``.
        OSError: it cannot be opened for another reason.
    """
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return how()
        except OSError as error:
            if not none_left(error):
                raise
            if time.monotonic() >= until:
                raise StoreRefuses(
                    f"Cannot open {path}: {error.strerror} for {WAIT_S:g} s, and at most {limit()} "
                    "are allowed.",
                    MORE_FILES,
                ) from error
        time.sleep(LOOK_S)
