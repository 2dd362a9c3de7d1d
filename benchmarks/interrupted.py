"""How a benchmark ends that is told to: in a sentence, as all programs here do."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_CODE = 130


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, Ctrl+C and SIGTERM end the program once what it has started is put away."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print("Interrupted; nothing of it is left.", file=sys.stderr)
        sys.exit(EXIT_CODE)
    finally:
        signal.signal(signal.SIGTERM, before)
