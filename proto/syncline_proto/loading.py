"""Ctrl+C while a program is still loading: one word, and no traceback of what it was amid.

Imports next to nothing, since what comes before it cannot be interrupted tidily.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130
"""The exit code after Ctrl+C."""


class Loading:
    """Inside, modules are loaded and nothing is open yet: Ctrl+C ends the process at once.

    As an exception it would go through modules half loaded, some of which make another of it.
    Where Ctrl+C is ignored, or is somebody else's, it stays so.
    """

    def __enter__(self) -> None:
        self._is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_ours:
            signal.signal(signal.SIGINT, break_off)

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def break_off(*_: object) -> None:
    """End the process at once; of several ranks the first one says why."""
    if os.environ.get("RANK", "0") == "0":
        os.write(2, b"Interrupted.\n")
    os._exit(INTERRUPTED)
