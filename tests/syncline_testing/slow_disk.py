"""A disk that takes its time, at the one seam where everything waits for it: ``os.fsync``."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Self

import pytest

LIMIT_S = 60.0
"""After which a test that hangs goes on, and fails."""


class SlowDisk:
    """Files whose path holds one of some words are not synced before the gate is open."""

    def __init__(self, patch: pytest.MonkeyPatch, *words: str) -> None:
        self.words = words
        self.at_once: set[str] = set()
        """The files that wait now."""
        self.error: OSError | None = None
        """What comes of those that waited, in place of a sync."""
        self._gate = threading.Event()
        self._sync = os.fsync
        patch.setattr(os, "fsync", self._slow)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def open(self) -> None:
        self._gate.set()

    async def until(self, holds: Callable[[Self], bool]) -> None:
        """Wait until the files that wait are as they should be."""
        async with asyncio.timeout(LIMIT_S):
            while not holds(self):
                await asyncio.sleep(0.002)

    def _slow(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if any(word in path for word in self.words) and not self._gate.is_set():
            self.at_once.add(path)
            self._gate.wait(LIMIT_S)
            self.at_once.discard(path)
            if self.error is not None:
                raise self.error
        self._sync(handle)
