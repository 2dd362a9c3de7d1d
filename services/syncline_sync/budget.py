"""Room in memory for pushes in flight: first come, first served, within one limit.

One loop owns it. Knows bytes only; what they hold is staging's business.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from syncline_proto.errors import Overloaded

WAITERS_MAX = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """``size`` bytes, to be used once ``granted`` is done, and to be given back in any case."""

    size: int
    granted: asyncio.Future[None]


class Budget:
    """Bytes that staged pushes may hold.

    Invariant: ``used`` <= ``limit``, except that one push alone may always enter.
    """

    def __init__(self, limit: int, waiters_max: int = WAITERS_MAX) -> None:
        self.limit = limit
        self.used = 0
        self._waiters_max = waiters_max
        self._waiting: dict[Room, None] = {}
        """In the order in which they came."""

    def ask(self, size: int) -> Room:
        """Ask for ``size`` bytes behind those who came before.

        Raises:
            Overloaded: too many wait already.
        """
        if len(self._waiting) >= self._waiters_max:
            raise Overloaded("The sync service has too many pushes waiting for room; try later.")
        room = Room(size, asyncio.get_running_loop().create_future())
        self._waiting[room] = None
        self._admit()
        return room

    def give_back(self, room: Room) -> None:
        """End a room, granted or still waited for."""
        if room in self._waiting:
            del self._waiting[room]
            room.granted.cancel()
        else:
            self.used -= room.size
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            room = next(iter(self._waiting))
            if self.used and self.used + room.size > self.limit:
                break
            del self._waiting[room]
            self.used += room.size
            room.granted.set_result(None)
