"""Bells: how somebody who waits learns that there is something new.

A bell carries no news. Whoever hears it looks at the database, so a ring that is missed or too
many does no harm. Lives on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from syncline_proto.errors import Overloaded

Read = TypeVar("Read")


class Bell:
    """Wakes everybody who waits; after ``close`` nobody waits any more.

    Invariant: at most ``waiters_max`` wait at once.
    """

    def __init__(self, waiters_max: int) -> None:
        self._waiters_max = waiters_max
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
        if self._waiters >= self._waiters_max:
            raise Overloaded(f"{self._waiters_max} calls wait here already; ask again later.")
        self._waiters += 1
        try:
            async with asyncio.timeout(timeout_s):
                await ring.wait()
        except TimeoutError:
            return False
        finally:
            self._waiters -= 1
        return not self.closed


class Together(Generic[Read]):
    """Lets those who want to read the same at the same time read it once.

    A ring from ``Bell.listen`` belongs into the key: whoever joins a read knows that it began
    after every ring before that one, so it misses nothing.
    """

    def __init__(self) -> None:
        self._under_way: dict[Hashable, asyncio.Task[Read]] = {}

    async def read(self, key: Hashable, how: Callable[[], Coroutine[Any, Any, Read]]) -> Read:
        """Return what ``how`` returns, or what it does for somebody who came just before.

        Raises:
            SynclineError: whatever ``how`` raises.
        """
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(how())
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def _ended(self, key: Hashable, task: asyncio.Task[Read]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # whoever asked may have hung up; that is no fault
