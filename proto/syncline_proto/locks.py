"""One owner at a time: a lock file that is free again when its owner is gone, however it went."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from syncline_proto.errors import ConfigError, StoreError

TRIES_MAX = 10
"""Each that fails tells of an owner that took the file away as it went."""


def owned(path: Path) -> IO[bytes] | None:
    """Lock the file until the answer is closed or the process ends; None if another has it.

    An owner may unlink the file before it lets go of it.

    Raises:
        OSError: the file cannot be made, or its file system knows no locks.
    """
    for _ in range(TRIES_MAX):
        lock = _locked(path)
        if lock is None or is_still(path, lock):
            return lock
        lock.close()
    return None


def _locked(path: Path) -> IO[bytes] | None:
    lock = path.open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return lock


def is_still(path: Path, lock: IO[bytes]) -> bool:
    """Whether the file goes by that name yet; if not, the next one would lock another.

    Raises:
        OSError: nobody can tell.
    """
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False


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
