"""Room in memory for pushes in flight: first come, first served, within one limit.

Who had to leave the line may come back to its old place in it, and holds nobody up meanwhile.
One loop owns it. Knows bytes only; what they hold is staging's business.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from dataclasses import dataclass

from syncline_proto.errors import Overloaded

WAITERS_MAX = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """``size`` bytes, to be used once ``granted`` is done, and to be given back in any case."""

    size: int
    place: int
    """In the line: the smallest is served first."""
    granted: asyncio.Future[None]


class Budget:
    """Bytes that staged pushes may hold.

    Invariant: ``used`` <= ``limit``, except that one push alone may always enter.
    """

    def __init__(self, limit: int, waiters_max: int = WAITERS_MAX) -> None:
        self.limit = limit
        self.used = 0
        self._waiters_max = waiters_max
        self._places = itertools.count()
        self._waiting: list[Room] = []
        """By their place."""

    def ask(self, size: int, place: int | None = None) -> Room:
        """Ask for ``size`` bytes behind those who came before, or at a ``place`` held before.

        Raises:
            Overloaded: too many wait already.
        """
        if len(self._waiting) >= self._waiters_max:
            raise Overloaded("The sync service has too many pushes waiting for room; try later.")
        place = next(self._places) if place is None else place
        room = Room(size, place, asyncio.get_running_loop().create_future())
        bisect.insort(self._waiting, room, key=lambda waiting: waiting.place)
        self._admit()
        return room

    def give_back(self, room: Room) -> None:
        """End a room, granted or still waited for."""
        if room.granted.done():
            self.used -= room.size
        else:
            self._waiting.remove(room)
            room.granted.cancel()
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            room = self._waiting[0]
            if self.used and self.used + room.size > self.limit:
                break
            del self._waiting[0]
            self.used += room.size
            room.granted.set_result(None)
