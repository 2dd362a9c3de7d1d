"""Bells: how somebody who waits learns that there is something new.

A bell carries no news. Whoever hears it looks at the database, so a ring that is missed or too
many does no harm. Lives on the event loop only.
"""

from __future__ import annotations

import asyncio

from syncline_proto.errors import Overloaded

WAITERS_MAX = 10_000


class Bell:
    """Wakes everybody who waits; after ``close`` nobody waits any more.

    Invariant: at most ``WAITERS_MAX`` wait at once.
    """

    def __init__(self) -> None:
        self._ring = asyncio.Event()
        self._waiters = 0
        self.closed = False

    def ring(self) -> None:
        self._ring.set()
        self._ring = asyncio.Event()

    def close(self) -> None:
        self.closed = True
        self.ring()

    def listen(self) -> asyncio.Event:
        """Return what the next ring sets; take it *before* looking, so that no ring is lost."""
        return self._ring

    async def heard(self, ring: asyncio.Event, timeout_s: float) -> bool:
        """Wait for a ring taken by ``listen``; False if time ran out or the bell is closed.

        Raises:
            Overloaded: too many wait already.
        """
        if self.closed or timeout_s <= 0:
            return False
        if self._waiters >= WAITERS_MAX:
            raise Overloaded(f"{WAITERS_MAX} calls wait here already; ask again later.")
        self._waiters += 1
        try:
            async with asyncio.timeout(timeout_s):
                await ring.wait()
        except TimeoutError:
            return False
        finally:
            self._waiters -= 1
        return not self.closed
