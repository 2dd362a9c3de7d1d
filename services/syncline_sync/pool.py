"""Heavy work off the loop: arithmetic and the disk, each in threads of its own, while one waits.

A disk that is slow holds up who writes to it, and nobody's arithmetic. The work must own what it
changes; the pool knows nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

DISK_THREADS = 4
"""Fragments and runs that are written, or read whole, at a time; others wait for their turn."""


async def compute(
    pool: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run ``work`` in the pool and return its result; the loop goes on meanwhile."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool, lambda: work(*args, **kwargs))
