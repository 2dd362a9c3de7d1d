"""Work in threads: who waits for it to its end does so when cancelled, too."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from syncline_sync.pool import compute_to_the_end


@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize("fails", [False, True])
def test_who_is_cancelled_ends_once_the_thread_is_back(fails: bool, cancels: int) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        assert may_end.wait(10)
        return 1 // (not fails)

    async def scenario(pool: ThreadPoolExecutor) -> None:
        call = asyncio.create_task(compute_to_the_end(pool, work))
        await asyncio.to_thread(begun.wait, 10)
        for _ in range(cancels):
            call.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert not call.done(), "its thread is at work"
        may_end.set()
        await asyncio.wait([call])
        assert call.cancelled()

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(scenario(pool))
