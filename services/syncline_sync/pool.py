"""Heavy work off the loop, in threads of its kind: arithmetic here, the disk's beside (disk.py).

So a disk that is slow holds up who writes to it, and nobody's arithmetic. The work must own what it
changes; the pool knows nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def compute(
    pool: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run ``work`` in the pool and return its result; the loop goes on meanwhile."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool, lambda: work(*args, **kwargs))


async def compute_to_the_end(
    pool: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """As ``compute``; who is cancelled meanwhile ends only once the thread is back."""
    computing = asyncio.ensure_future(compute(pool, work, *args, **kwargs))
    try:
        return await asyncio.shield(computing)
    except asyncio.CancelledError:
        await asyncio.gather(computing, return_exceptions=True)
        raise
