"""One owner at a time: a lock file that is free again when its owner is gone, however it went."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from syncline_proto.errors import ConfigError, StoreError


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


def only_owner(path: Path, taken: str, flag: str) -> IO[bytes]:
    """Lock the file as ``owned`` does, for a process that must be its only owner.

    Args:
        taken: who else has it, and what it keeps there, for the sentence that says so.
        flag: what chooses another place.

    Raises:
        ConfigError: another process has it.
        StoreError: the lock file cannot be made or locked.
    """
    try:
        lock = owned(path)
    except OSError as error:
        raise StoreError(f"Cannot lock {path} ({error.strerror}); choose {flag}.") from error
    if lock is None:
        raise ConfigError(f"{taken}; stop it, or choose {flag}.")
    return lock
