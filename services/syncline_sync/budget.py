"""Room for what is in flight, within one limit: shared fairly between runs, and within each.

The run that holds the least is served first, so nobody's pushes can keep another run's out; within
a run likewise the replica that holds the least; among those who hold as much, first come, first
served. Room may be held for long by who does nothing with it, so a replica that has some gets more
only up to half of what the others leave, and is in nobody's way while it waits for that. Who had to
leave the line may come back to its old place in it, and holds nobody up meanwhile. One loop owns
it. Knows sizes only; what they are of is its users' business.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from syncline_proto.errors import Overloaded

WAITERS_MAX = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Room of a ``size``: used once ``granted`` is done, and to be given back in any case."""

    run: str
    replica: str
    """Empty where a run's reservations are nobody's in particular: they count as one replica's."""
    size: int
    place: int
    """In the line: of one replica, the smallest is served first."""
    granted: asyncio.Future[None]

    @property
    def whose(self) -> tuple[str, str]:
        return self.run, self.replica


class Budget:
    """What may be in flight at a time: bytes of pushes, turns of pulls, searches for boxes.

    Invariants:
        - ``used`` <= ``limit``, except that one reservation alone may always be had;
        - a replica that holds something gets more only if as much as it held then stays free;
        - whoever need not wait for that is never passed by a run that holds more than its own, nor
          by a replica of its run that holds more than it does.

    So a replica that gives nothing back, of reservations up to a size s, leaves (f - s) / 2 or more
    of the f that was free before it: beside one such, a limit of 3 s has room for anybody's next.
    Of size 1, ``n`` of them leave at least ``limit // 2**n``.
    """

    def __init__(self, limit: int, waiters_max: int = WAITERS_MAX) -> None:
        self.limit = limit
        self.used = 0
        self._waiters_max = waiters_max
        self._places = itertools.count()
        self._held: Counter[str] = Counter()
        """By run; those that hold nothing are not in it."""
        self._held_by: Counter[tuple[str, str]] = Counter()
        """By run and replica, likewise."""
        self._waiting: dict[tuple[str, str], list[Reservation]] = {}
        """By run and replica, then by place; no list is empty."""
        self._heads: dict[str, list[tuple[int, int, int, Reservation]]] = {}
        """By run: the first of each of its replicas, behind what that holds and its place.

        In order, so that who comes next is found without a look at all of them: there may be
        thousands. The third is there to be different. No list is empty.
        """
        self._least = 0
        """No size that is waited for is less."""
        self.waiters = 0
        """Reservations that are waited for."""
        self._told: dict[Callable[[], None], None] = {}
        """Who is told, once, when room is waited for; in order, and any number may leave."""

    def ask(self, run: str, size: int, place: int | None = None, replica: str = "") -> Reservation:
        """Ask for room behind the replica's own that came before, or at a ``place`` held before.

        Raises:
            Overloaded: too many wait already.
        """
        if self.waiters >= self._waiters_max:
            raise Overloaded("The sync service has too many calls waiting for room; try later.")
        place = next(self._places) if place is None else place
        reservation = Reservation(
            run, replica, size, place, asyncio.get_running_loop().create_future()
        )
        with self._ranked(reservation.whose):
            line = self._waiting.setdefault(reservation.whose, [])
            bisect.insort(line, reservation, key=_place_of)
        self._least = min(size, self._least) if self.waiters else size
        self.waiters += 1
        # Without room for this one nobody comes in: who was next still waits, or waits behind it.
        # So the lines are not looked through then; there may be thousands.
        if self._has_room(reservation):
            self._admit()
        if self.waiters and self._told:
            told, self._told = self._told, {}
            for wanted in told:
                wanted()
        return reservation

    def when_wanted(self, wanted: Callable[[], None]) -> bool:
        """Have ``wanted`` called, once, when anybody waits for room; False: somebody does now.

        For who holds room that could be given back sooner: it is to go on with that.
        """
        if not self.waiters:
            self._told[wanted] = None
        return not self.waiters

    def forget_wanted(self, wanted: Callable[[], None]) -> None:
        """Do not call this one any more, if it has not been."""
        self._told.pop(wanted, None)

    def is_wanted_beside(self, reservation: Reservation) -> bool:
        """Whether another replica than the one whose this is waits for room."""
        return any(whose != reservation.whose for whose in self._waiting)

    @asynccontextmanager
    async def reserved(self, run: str, size: int) -> AsyncGenerator[None]:
        """Wait for room, and have it to the end of the block.

        Raises:
            Overloaded: too many wait already.
        """
        reservation = self.ask(run, size)
        try:
            await asyncio.shield(reservation.granted)
            yield
        finally:
            self.give_back(reservation)

    def give_back(self, reservation: Reservation) -> None:
        """End a reservation, granted or still waited for."""
        if reservation.granted.done():
            self._hold(reservation, -reservation.size)
            self._admit()
            return
        is_first = self._waiting[reservation.whose][0] is reservation
        self._unqueue(reservation)
        reservation.granted.cancel()
        if is_first:  # of another nobody was kept out
            self._admit()

    def _admit(self) -> None:
        while (reservation := self._next()) is not None:
            self._unqueue(reservation)
            self._hold(reservation, reservation.size)
            reservation.granted.set_result(None)

    def _next(self) -> Reservation | None:
        """Who comes next, if there is room for it."""
        room = self.limit - self.used
        if self.used and self._least > room:
            return None
        firsts = (self._first_in_share(heads, room) for heads in self._heads.values())
        first = min(
            (first for first in firsts if first is not None),
            key=lambda first: (self._held[first[-1].run], *first[:2]),
            default=None,
        )
        return first[-1] if first is not None and self._has_room(first[-1]) else None

    def _first_in_share(
        self, heads: list[tuple[int, int, int, Reservation]], room: int
    ) -> tuple[int, int, int, Reservation] | None:
        """The first whose replica may have it as far as what the others hold goes."""
        for head in heads:
            held, size = head[0], head[-1].size
            if not held or size + held <= room:
                return head
            if self._least + held > room:  # and those behind it hold as much
                break
        return None

    def _has_room(self, reservation: Reservation) -> bool:
        """Whether it fits beside what is held; one alone always does."""
        return not self.used or self.used + reservation.size <= self.limit

    @contextmanager
    def _ranked(self, whose: tuple[str, str]) -> Generator[None]:
        """Keep a replica's place among the first of its run, whatever the block does to it."""
        if whose in self._waiting:
            heads = self._heads[whose[0]]
            del heads[bisect.bisect_left(heads, self._rank(whose))]
            if not heads:
                del self._heads[whose[0]]
        yield
        if whose in self._waiting:
            bisect.insort(self._heads.setdefault(whose[0], []), self._rank(whose))

    def _rank(self, whose: tuple[str, str]) -> tuple[int, int, int, Reservation]:
        first = self._waiting[whose][0]
        return self._held_by[whose], first.place, id(first), first

    def _unqueue(self, reservation: Reservation) -> None:
        with self._ranked(reservation.whose):
            line = self._waiting[reservation.whose]
            at = bisect.bisect_left(line, reservation.place, key=_place_of)
            del line[line.index(reservation, at)]
            if not line:
                del self._waiting[reservation.whose]
        self.waiters -= 1

    def _hold(self, reservation: Reservation, size: int) -> None:
        with self._ranked(reservation.whose):
            self.used += size
            self._held[reservation.run] += size
            self._held_by[reservation.whose] += size
            if not self._held[reservation.run]:
                del self._held[reservation.run]
            if not self._held_by[reservation.whose]:
                del self._held_by[reservation.whose]


def _place_of(reservation: Reservation) -> int:
    return reservation.place
