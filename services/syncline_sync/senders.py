"""Pulls on their way out: so many make and send chunks at a time, all others wait for their turn.

A chunk that its reader does not take is in memory several times over, here and in gRPC; so what
slow readers cost is bounded by turns. These are short, so that many slow readers all move, and
runs have them alike, whoever has more readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager

from syncline_proto.errors import Unreachable
from syncline_sync.budget import Budget

SENDERS_MAX = 256
"""With their chunks of 256 KiB, some four times in memory, they hold 300 MiB at worst."""

TURN_S = 1.0
"""A turn ends with the first chunk that is taken after this."""


class Senders:
    """The turns of one process's pulls."""

    def __init__(self, senders_max: int) -> None:
        self._turns = Budget(senders_max)

    @asynccontextmanager
    async def turn(self, run: str) -> AsyncGenerator[None]:
        """Wait for a turn, and have it to the end of the block.

        Raises:
            Overloaded: too many wait already.
        """
        turn = self._turns.ask(run, 1)
        try:
            await asyncio.shield(turn.granted)
            yield
        finally:
            self._turns.give_back(turn)


async def taken(writing: Awaitable[None], wait_s: float) -> None:
    """Write a chunk.

    Raises:
        Unreachable: the reader has not taken enough of what came before it for ``wait_s``.
    """
    try:
        async with asyncio.timeout(wait_s):
            await writing
    except TimeoutError:
        raise Unreachable(f"pull: nothing was taken for {wait_s:g} s; pull again.") from None
