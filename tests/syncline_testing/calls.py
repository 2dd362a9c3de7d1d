"""How many calls a piece of work makes: what it costs, without a clock."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Calls:
    """Calls and returns, of Python's functions and C's, in one thread."""

    count: int = 0


@contextmanager
def calls_counted() -> Generator[Calls]:
    """Those of the block; the garbage collector, which others may listen to, waits meanwhile."""
    calls = Calls()

    def counted(*_: Any) -> None:
        calls.count += 1

    gc.disable()
    sys.setprofile(counted)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        gc.enable()
