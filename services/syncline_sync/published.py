"""What replicas may pull: the last two revisions of a fragment, the same bytes for everyone.

A pull waits for the very revision it names; an older one than the kept is refused with the newest
named. Where a value's bytes come from may change while it is read; they do not. Decides nothing
else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

from syncline_proto.codec import DIFFERENCE_ELEMENTS, Bytes, chunk_elements, crc32c, is_worth_it
from syncline_proto.errors import RevisionGone, StoreDamaged
from syncline_proto.spans import Extent, Spans
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import KEPT, Saved
from syncline_sync.cuts import chunk_spans
from syncline_sync.pool import compute
from syncline_sync.report import pushed
from syncline_sync.sources import FEW_SPANS, Difference, Source

FEW_CUT_SPANS = FEW_SPANS // 4
"""So many are cut out of a difference within a millisecond: each may be in several blocks."""

PULLED_BYTES_MAX = 1 << 20
"""Of a chunk that is sent: it is in memory several times over for each reader, and chunks of twice
that save a pull 5 % of its CPU where they save a push 25 %."""

LONG_DIFFERENCE_ELEMENTS = 1000 * 1024
"""Of a chunk of that, where a shard has no more spans: with a scale of 4 bytes for each block of
256, and two more for each span that begins and ends within one, it is under 1 MiB."""

SUMS_MAX = 4096
"""Checksums that are kept of a value: those of a fragment of 4 GiB, in a cut that all ask for."""


class NewestNamed(RevisionGone):
    """RevisionGone, with the newest revision for the trailer."""

    def __init__(self, message: str, newest: int) -> None:
        super().__init__(message)
        self.newest = newest


class Whose(NamedTuple):
    """Who publishes: an instance of a service, a run's fragment."""

    instance: str
    run: str
    fragment: int

    def value(self, saved: Saved, back: int = 0) -> str:
        """What is published as ``saved``, or ``back`` revisions before it, is called.

        Nobody ever publishes anything else of that name.
        """
        return "/".join(map(str, (*self, saved.epoch, saved.revision - back)))


class Published:
    """One revision (or mean gradient) as everyone sees it. One loop owns it."""

    def __init__(
        self,
        saved: Saved,
        codec: pb.Codec.ValueType,
        source: Source,
        difference: Difference | None = None,
        published_s: float | None = None,
    ) -> None:
        """``difference`` is the one to the revision before, for who holds that.

        ``published_s``: when that was, on the clock that ``header`` is told; None: nobody knows.
        """
        self.saved, self.codec, self.difference = saved, codec, difference
        self._published_s = published_s
        self._source, self._in_memory = source, difference
        """The difference until its memory is given back; ``difference`` is None once nobody may
        begin to read it."""
        self.sums: dict[tuple[bool, int, int], int] = {}
        """By whether it is of the difference, and the span that was cut out."""
        self._reads: set[asyncio.Future[Bytes]] = set()
        """Those under way in the pool; they may be of a source before this one."""
        self._loans = 0
        self._is_dropped = False

    def difference_to(self, held: str, whose: Whose, where: Extent) -> Difference | None:
        """What takes the value named ``held`` to this one; None: that is to be sent whole."""
        wanted = whose.value(self.saved, back=1)
        is_wanted = held == wanted and is_worth_it(where.span_count, where.elements)
        return self.difference if is_wanted else None

    def header(
        self, elements: int, whose: Whose, now_s: float, difference_from: str = ""
    ) -> pb.PullHeader:
        """What goes before the chunks of ``elements``.

        ``difference_from`` names the value to which they are a difference, where they are one.
        """
        return pb.PullHeader(
            epoch=self.saved.epoch,
            revision=self.saved.revision,
            gradient_step=self.saved.gradient_step,
            codec=pb.CODEC_INT8 if difference_from else self.codec,
            elements=elements,
            committed_tokens=self.saved.committed_tokens,
            contributions=pushed(self.saved),
            instance=whose.instance,
            value=whose.value(self.saved),
            difference_from=difference_from,
            published_ago_s=0.0 if self._published_s is None else now_s - self._published_s,
        )

    def cuts(self, where: Extent) -> Iterator[Spans]:
        """The spans of each chunk of a shard, in payload order; as heavy as ``chunk_spans``."""
        return chunk_spans(where, chunk_elements(self.codec, PULLED_BYTES_MAX))

    async def read(self, spans: Spans, pool: ThreadPoolExecutor) -> Bytes:
        """The bytes of some spans; in the pool, where that takes longer than to copy them.

        They may lie in the value: a reader is done with them before it waits for anything.

        Raises:
            RevisionGone: it was dropped, and its file has been removed.
            StoreDamaged: it is read from its file, and that is damaged.
        """
        if self._source.is_light and len(spans) <= FEW_SPANS:
            return self._source.read(spans)
        reading = asyncio.ensure_future(compute(pool, self._source.read, spans))
        self._reads.add(reading)
        reading.add_done_callback(self._read)
        return await asyncio.shield(reading)  # a call that goes leaves the thread

    async def move(self, source: Source) -> None:
        """Read from another source from now on; nobody reads the one before when this returns."""
        before, self._source = self._source, source
        if self._reads:
            await asyncio.wait(set(self._reads))
        before.close()

    async def hold(self, pool: ThreadPoolExecutor) -> None:
        """Whoever reads it may go on to, although its file is about to be removed.

        A file that cannot be held is told to who reads it.
        """
        if self._loans:
            with contextlib.suppress(RevisionGone, StoreDamaged):
                await compute(pool, self._source.hold)

    def lend(self) -> None:
        """Somebody begins to read it; ``give_back`` is to follow."""
        self._loans += 1

    def give_back(self) -> None:
        self._loans -= 1
        self._close_unread()

    def retire(self) -> memoryview | None:
        """Let nobody begin to read the difference.

        Return its memory, if nobody reads the value now.
        """
        self.difference = None
        if self._in_memory is None or self._loans:
            return None
        unread, self._in_memory = self._in_memory.payload, None
        return unread

    def drop(self) -> None:
        """Nobody begins to read it any more.

        Nor goes on to read its difference, which is in memory alone: each slow reader's would stay.
        """
        self._is_dropped = True
        self.difference = None
        if self._in_memory is not None:
            self._in_memory.close()
        self._close_unread()

    def _read(self, reading: asyncio.Future[Bytes]) -> None:
        self._reads.discard(reading)
        if not reading.cancelled():
            reading.exception()  # whoever asked may be gone
        self._close_unread()

    def _close_unread(self) -> None:
        if self._is_dropped and not self._loans and not self._reads:
            self._source.close()


class Shelf:
    """The published values of one kind, by number; only the newest ``KEPT`` stay."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._values: dict[int, Published] = {}
        self._changed = asyncio.Event()
        self._over: NewestNamed | None = None
        self._phase = 0

    def be_in(self, phase: int) -> None:
        """The run's synchronous phase is this one: who waits in another waits no more."""
        self._phase = phase
        self._wake()

    @property
    def newest(self) -> int | None:
        return max(self._values, default=None)

    def end(self, why: str, newest: int) -> None:
        """Nothing more will come: free the values, and tell ``why`` to all who ask or wait."""
        self._over = NewestNamed(why, newest)
        self.clear()

    @property
    def values(self) -> list[tuple[int, Published]]:
        """What is kept, with its number, oldest first."""
        return sorted(self._values.items())

    def put(self, number: int, value: Published) -> None:
        self._values[number] = value
        for old in sorted(self._values)[:-KEPT]:
            self._values.pop(old).drop()
        self._wake()

    def clear(self) -> None:
        for value in self._values.values():
            value.drop()
        self._values.clear()
        self._wake()

    def keeps(self, value: Published) -> bool:
        """Whether this very value may be had here."""
        return any(kept is value for kept in self._values.values())

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

    async def get(self, number: int | None, phase: int | None = None) -> Published:
        """Wait for exactly this number, or with None for the newest there is.

        ``phase``: in that synchronous phase; None: whichever.

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
            if newest is not None:
                if number is None:
                    return self._values[newest]
                if number in self._values:
                    return self._values[number]
                if number < newest:
                    raise self.gone(number)
            await self._changed.wait()

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

    def check(self, now_s: float, still_s: float) -> None:
        """Look whether reading may go on; call it for each chunk.

        Raises:
            RevisionGone: the shelf dropped it ``still_s`` ago; a difference, which is in no file,
                just now.
        """
        if self._shelf.keeps(self.value):
            return
        if self._difference is not None:
            raise self._shelf.gone(self._number)
        if self._dropped_s is None:
            self._dropped_s = now_s
        if now_s >= self._dropped_s + still_s:
            raise self._shelf.gone(self._number)

    def cuts(self, where: Extent) -> Iterator[Spans]:
        """The spans of each chunk of a shard, in payload order; as heavy as ``chunk_spans``."""
        if self._difference is not None:
            few = where.span_count <= FEW_CUT_SPANS
            return chunk_spans(where, LONG_DIFFERENCE_ELEMENTS if few else DIFFERENCE_ELEMENTS)
        return self.value.cuts(where)

    async def read(self, spans: Spans, pool: ThreadPoolExecutor) -> Bytes:
        """The bytes of some spans; as ``Published.read``.

        Raises:
            RevisionGone: the value was dropped, and its file removed before it was held, or its
                difference freed.
            StoreDamaged: its file is damaged.
        """
        try:
            if self._difference is not None:
                if len(spans) <= FEW_CUT_SPANS:
                    return self._difference.read(spans)
                return await compute(pool, self._difference.read, spans)
            return await self.value.read(spans, pool)
        except RevisionGone:
            raise self._shelf.gone(self._number) from None

    def checksum(self, spans: Spans, data: Bytes) -> int:
        """CRC-32C of ``data``, which ``read`` gave for ``spans``; most readers ask for the same."""
        if len(spans) != 1:
            return crc32c(data)
        start, length = spans[0].tolist()
        sums, key = self.value.sums, (self._difference is not None, start, length)
        known = sums.get(key)
        if known is None:
            known = crc32c(data)
            if len(sums) < SUMS_MAX:
                sums[key] = known
        return known
