"""SIGTERM as a polite request: the loop reads it between two steps, and drains.

Ctrl+C keeps Python's meaning, KeyboardInterrupt: it is for people who do not want to wait.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Stop:
    """Whether somebody asked this process to end."""

    asked: bool = False


@contextmanager
def heeding_sigterm(stop: Stop, tell: Callable[[], None]) -> Iterator[None]:
    """Set ``stop.asked`` on SIGTERM and call ``tell``, which must be quick; main thread only."""

    def heed(number: int, frame: FrameType | None) -> None:
        stop.asked = True
        tell()

    before = signal.signal(signal.SIGTERM, heed)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
