"""Which values a replica may pull: a fragment's last two revisions, and how a pull waits for one.

A pull waits for the very revision it names; one older than those that are kept is refused, with the
newest named. One that is announced is had by who names it soon, but for its end; to all others
there is no such revision until it is published. Decides nothing else.
"""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from syncline_proto.codec import DIFFERENCE_ELEMENTS, Bytes, crc32c
from syncline_proto.errors import Overloaded, RevisionGone
from syncline_proto.spans import Extent, Spans
from syncline_sync.core.record import KEPT
from syncline_sync.cuts import FEW_SPANS, Cuts, chunk_spans
from syncline_sync.durability import StoreRefuses
from syncline_sync.pool import compute
from syncline_sync.published import Cut, Published
from syncline_sync.sources import Difference

FEW_CUT_SPANS = FEW_SPANS // 4
"""So many spans are cut out of a difference within a millisecond; each may be in several blocks."""

LONG_DIFFERENCE_ELEMENTS = 1000 * 1024
"""In a chunk of a difference, where a shard has at most ``FEW_CUT_SPANS``: with a scale of 4 bytes
for each block of 256, and two more for each span that begins and ends within one, under 1 MiB."""

LEAVING_MAX = 2
"""Dropped values of a shelf that slow readers go on with: the removed file of each takes the disk's
room until they have ended."""

SUMS_MAX = 4096
"""Checksums that are kept of a value: enough for 4 GiB in the one cut that most readers ask for."""


class NewestNamed(RevisionGone):
    """RevisionGone, with the newest revision for the trailer."""

    def __init__(self, message: str, newest: int) -> None:
        super().__init__(message)
        self.newest = newest


class Shelf:
    """The published values of one kind, by number; only the newest ``KEPT`` stay."""

    # A write mostly ends within a second or two, and so hides what is sent meanwhile. One that goes
    # on after this may well take longer than a reader lets a call stand still (30 s, lan): it cuts
    # its call before the end comes, asks again, and would be sent all of it in vain each time.
    HEAD_START_S = 5.0
    """Who comes later than this after an announcement waits for the publication, with nothing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._values: dict[int, Published] = {}
        self._announced: tuple[int, Published, float] | None = None
        """With when it was, on the clock that ``get`` is told."""
        self._leaving: list[Published] = []
        """What was dropped and is read still, oldest first."""
        self._changed = asyncio.Event()
        self._over: NewestNamed | None = None
        self._phase = 0

    def be_in(self, phase: int) -> None:
        """The run's synchronous phase is now this one: pulls that wait in another end."""
        self._phase = phase
        self._wake()

    @property
    def newest(self) -> int | None:
        return max(self._values, default=None)

    def end(self, why: str, newest: int) -> None:
        """Nothing more will come: free the values, and tell ``why`` to all who ask or wait."""
        self._over = NewestNamed(why, newest)
        self.clear()

    def asked(self, elements: int) -> list[Cut]:
        """The first cuts that have been read of the newest value, up to so many elements of it."""
        found: list[Cut] = []
        for cut in (cut for _, value in self.values[-1:] for cut in value.asked):
            elements -= cut[-1]
            if elements < 0:
                break
            found.append(cut)
        return found

    @property
    def values(self) -> list[tuple[int, Published]]:
        """What is kept, with its number, oldest first."""
        return sorted(self._values.items())

    def announce(self, number: int, value: Published, now_s: float) -> None:
        """Let who names it begin to read what ``put`` will publish, and nothing else be there."""
        self._announced = number, value, now_s
        self._wake()

    def put(self, number: int, value: Published) -> None:
        self._announced = None
        self._values[number] = value
        for old in sorted(self._values)[:-KEPT]:
            self._let_go(self._values.pop(old))
        self._wake()

    def _let_go(self, value: Published) -> None:
        """Drop it; where enough others are read still, its readers are to begin with a newer one.

        The others are further, and so there is always one that comes to its end.
        """
        value.drop()
        self._leaving = [one for one in self._leaving if one.is_read]
        if len(self._leaving) >= LEAVING_MAX:
            value.is_over = True
        elif value.is_read:
            self._leaving.append(value)

    def clear(self) -> None:
        for value in self._all():
            value.drop()
        self._values.clear()
        self._leaving.clear()
        self._announced = None
        self._wake()

    def keeps(self, value: Published) -> bool:
        """Whether this very value may be had here."""
        return any(kept is value for kept in self._all())

    def gone(self, number: int) -> NewestNamed:
        """What to tell who wants a number that is not kept any more."""
        if self._over is not None:
            return NewestNamed(self._over.message, self._over.newest)
        newest = self.newest or 0
        return NewestNamed(f"{self._what} {number} is gone; the newest is {newest}.", newest)

    def missing(self, number: int) -> NewestNamed:
        """What to tell who wants, without waiting, a number that is not here."""
        newest = self.newest
        if self._over is not None or (newest is not None and number < newest):
            return self.gone(number)
        there = "there is none yet" if newest is None else f"the newest is {newest}"
        return NewestNamed(f"{self._what} {number} is still to come; {there}.", newest or 0)

    async def get(
        self, number: int | None, phase: int | None = None, now_s: float = -math.inf
    ) -> Published:
        """Wait for exactly this number, announced or published, or with None for the newest.

        ``phase``: in that synchronous phase; None: whichever. ``now_s`` is when it is asked for:
        what was announced over ``HEAD_START_S`` before is waited for until it is published.

        Raises:
            RevisionGone: it is older than the kept ones, or nothing more will come; or of a phase
                that has ended.
        """
        while True:
            if self._over is not None:
                raise NewestNamed(self._over.message, self._over.newest)
            newest = self.newest
            if phase is not None and phase != self._phase:
                why = f"{self._what}: the synchronous phase is number {self._phase}, not {phase}."
                raise NewestNamed(why, newest or 0)
            if self._announced is not None and number == self._announced[0]:
                _, value, announced_s = self._announced
                if now_s - announced_s <= self.HEAD_START_S:
                    return value
            if newest is not None:
                if number is None:
                    return self._values[newest]
                if number in self._values:
                    return self._values[number]
                if number < newest:
                    raise self.gone(number)
            await self._changed.wait()

    def _all(self) -> list[Published]:
        announced = [] if self._announced is None else [self._announced[1]]
        return [*self._values.values(), *announced]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Loan:
    """A value that a pull reads, in a ``with`` block; its shelf may drop it meanwhile."""

    def __init__(
        self, shelf: Shelf, number: int, value: Published, difference: Difference | None = None
    ) -> None:
        """``difference``: it is read in the value's place."""
        self._shelf, self._number, self.value = shelf, number, value
        self._difference = difference
        self._dropped_s: float | None = None
        """When that was seen; None while the shelf keeps it."""

    def __enter__(self) -> Self:
        self.value.lend()
        return self

    def __exit__(self, *_: object) -> None:
        self.value.give_back()

    def check(self, now_s: float, leave_s: float) -> None:
        """Look whether reading may go on; call it for each chunk.

        Raises:
            RevisionGone: the shelf dropped it ``leave_s`` ago, or just now, where enough others are
                read still; a difference, which is in no file, just now.
        """
        if self._shelf.keeps(self.value):
            return
        if self._difference is not None:
            raise self._shelf.gone(self._number)
        if self._dropped_s is None:
            self._dropped_s = now_s
        if self.value.is_over or now_s >= self._dropped_s + leave_s:
            raise self._shelf.gone(self._number)

    @property
    def is_to_end(self) -> bool:
        """Whether the value's end may be read, too; ``published`` waits for that."""
        return not self.value.is_announced

    async def published(self) -> None:
        """Wait until the value may be had whole.

        Raises:
            RevisionGone: it will not.
        """
        try:
            await self.value.published()
        except RevisionGone:
            raise self._shelf.gone(self._number) from None

    def cuts(self, where: Extent) -> Cuts:
        """A shard's chunks; as heavy as ``chunk_spans``."""
        if self._difference is not None:
            few = where.span_count <= FEW_CUT_SPANS
            return chunk_spans(where, LONG_DIFFERENCE_ELEMENTS if few else DIFFERENCE_ELEMENTS)
        return self.value.cuts(where)

    async def read(
        self, spans: Spans, pool: ThreadPoolExecutor, readers: ThreadPoolExecutor
    ) -> Bytes:
        """The bytes of some spans; as ``Published.read``.

        Raises:
            RevisionGone: the value was dropped, and its file removed before it was held, or its
                difference freed.
            StoreDamaged: its file is damaged.
            Overloaded: no file descriptor is left for that.
        """
        try:
            if self._difference is not None:
                if len(spans) <= FEW_CUT_SPANS:
                    return self._difference.read(spans)
                return await compute(pool, self._difference.read, spans)
            return await self.value.read(spans, pool, readers)
        except RevisionGone:
            raise self._shelf.gone(self._number) from None
        except StoreRefuses as error:
            raise Overloaded(error.beside_runs) from None

    def checksum(self, spans: Spans, data: Bytes) -> int:
        """CRC-32C of ``data``, which ``read`` gave for ``spans``; most readers ask for the same."""
        if len(spans) != 1:
            return crc32c(data)
        start, length = spans[0].tolist()
        sums, cut = self.value.sums, (self._difference is not None, start, length)
        if len(self.value.asked) < SUMS_MAX:
            self.value.asked[cut] = None
        known = sums.get(cut)
        if known is None:
            known = crc32c(data)
            if len(sums) < SUMS_MAX:
                sums[cut] = known
        return known
