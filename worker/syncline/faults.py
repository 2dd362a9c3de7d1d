"""How a fault of ours ends a program: in one sentence, with a traceback for who asks for it.

For the outermost ``except Exception`` of a process; errors of ours have sentences of their own.
"""

from __future__ import annotations

import os
import traceback

FAULT = 1
"""The exit code."""


def said_of(fault: Exception) -> str:
    """One sentence for the person at the screen."""
    said = f"{type(fault).__name__}: {fault}".partition("\n")[0]
    return f"A fault of ours ({said}); SYNCLINE_DEBUG=1 shows where, please report."


def trace_if_asked() -> None:
    """Write the traceback of the exception at hand where SYNCLINE_DEBUG=1 asks for it."""
    if os.environ.get("SYNCLINE_DEBUG") == "1":
        traceback.print_exc()
