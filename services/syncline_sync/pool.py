"""Heavy work off the loop, in threads of its kind: arithmetic here, the disk's beside (disk.py).

So a disk that is slow holds up who writes to it, and nobody's arithmetic. The work must own what it
changes; the pool knows nothing of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
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
    return await to_the_end(asyncio.ensure_future(compute(pool, work, *args, **kwargs)))


async def to_the_end(doing: asyncio.Future[T]) -> T:
    """Wait until it is done, however often the waiter is cancelled; a cancel is raised after it."""
    is_cancelled = False
    while not doing.done():
        try:
            await asyncio.wait({doing})
        except asyncio.CancelledError:
            is_cancelled = True
    try:  # no name here keeps what is raised: its frames have this one
        if is_cancelled:
            doing.exception()  # whatever it is, it has been heard
            raise asyncio.CancelledError
        return doing.result()
    finally:
        del doing


async def all_of(doing: Iterable[Awaitable[object]]) -> None:
    """Wait until all have ended, whatever becomes of some; then raise the first error of them."""
    for ended in await asyncio.gather(*doing, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


def leave_to(pool: ThreadPoolExecutor, work: Callable[[], object]) -> None:
    """Have it done in the pool, and wait for nothing; it is done here where the pool has ended.

    Where the pool ends before it has begun with it, who ends the pool does it.
    """

    def see(doing: Future[object]) -> None:
        if doing.cancelled():
            work()

    try:
        doing = pool.submit(work)
    except RuntimeError:
        work()
    else:
        doing.add_done_callback(see)


def shut_down(pools: Iterable[ThreadPoolExecutor], within_s: float) -> bool:
    """End pools, with what has not begun; whether all their threads are back in time.

    The others may never be: nobody can end a thread that waits for a disk. Blocks.
    """
    until_s = time.monotonic() + within_s
    # Who waits for a pool cannot say how long; so a thread does that nobody need wait for.
    ends = [Thread(target=_end, args=(pool,), daemon=True) for pool in pools]
    for end in ends:
        end.start()
    for end in ends:
        end.join(max(0.0, until_s - time.monotonic()))
    return not any(end.is_alive() for end in ends)


def _end(pool: ThreadPoolExecutor) -> None:
    pool.shutdown(wait=True, cancel_futures=True)
