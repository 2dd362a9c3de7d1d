"""A block is cut when it waits for its peer too long at once, and for nothing else."""

from __future__ import annotations

import asyncio

import pytest

from syncline_sync.patience import patience

WAIT_S = 0.02


def test_a_wait_is_cut_whenever_it_begins() -> None:
    """At once, after a while in which nobody waited, and after another wait."""

    async def scenario(before_s: float, waits: int) -> None:
        with pytest.raises(TimeoutError):
            async with patience(WAIT_S) as its:
                await asyncio.sleep(before_s)
                for _ in range(waits):
                    its.begin()
                    its.end()
                its.begin()
                await asyncio.Event().wait()

    for before_s in (0.0, 1.5 * WAIT_S):
        for waits in (0, 3):
            asyncio.run(scenario(before_s, waits))


def test_what_is_no_wait_for_the_peer_may_last() -> None:
    async def scenario() -> None:
        async with patience(WAIT_S) as its:
            its.begin()
            its.end()
            await asyncio.sleep(3 * WAIT_S)

    asyncio.run(scenario())


def test_who_is_heard_again_is_waited_for_anew() -> None:
    """Though what follows the first word takes longer than one wait may; a slow clock tells."""

    async def scenario() -> None:
        loop, late_s = asyncio.get_running_loop(), 0.0
        real = loop.time
        loop.time = lambda: real() + late_s  # type: ignore[method-assign]
        async with patience(60.0) as its:
            for _ in range(5):
                its.begin()
                late_s += 40.0
                for _ in range(3):
                    await asyncio.sleep(0)

    asyncio.run(scenario())


def test_a_block_that_is_over_is_not_cut() -> None:
    async def scenario() -> None:
        async with patience(WAIT_S) as its:
            its.begin()
        await asyncio.sleep(3 * WAIT_S)

    asyncio.run(scenario())
