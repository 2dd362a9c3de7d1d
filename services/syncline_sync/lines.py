"""Where the log goes: a line that nobody takes is lost, and stops nothing.

A log's disk that is full, or the reader of its pipe that is gone, is no matter of the runs.
"""

from __future__ import annotations

import contextlib
from typing import TextIO


class Lines:
    """A stream that takes whatever is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Have it written, if the stream takes it."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Have it out, likewise."""
        with contextlib.suppress(OSError):
            self._stream.flush()


def is_out(stream: TextIO) -> bool:
    """Whether all that was written is out; else the interpreter's own end would fail at it."""
    try:
        stream.flush()
    except OSError:
        return False
    return True
