"""One owner at a time: a lock file that is free again when its owner is gone, however it went."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO


def owned(path: Path) -> IO[bytes] | None:
    """Lock the file until the answer is closed or the process ends; None if another has it.

    Raises:
        OSError: the file cannot be made, or its file system knows no locks.
    """
    lock = path.open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return lock
