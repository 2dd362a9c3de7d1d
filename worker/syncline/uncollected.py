"""Loading modules with the garbage collector at rest, a sixth faster for torch and transformers.

They make half a million objects which all stay, and Python would look at them again and again:
while they are loaded, and later with each full collection of a training.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """Inside, nothing is collected; what is there at the end is never looked at again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_on:
            gc.enable()
