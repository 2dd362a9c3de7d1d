"""One revision of a fragment as replicas may pull it: the same bytes for everyone.

Where the bytes come from may change while they are read; they do not. Which revisions are kept, and
how a pull waits for one, is the shelf's (``shelf``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from syncline_proto.codec import Bytes, chunk_elements, crc32c, is_worth_it
from syncline_proto.errors import RevisionGone, StoreError
from syncline_proto.spans import Extent, Spans
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import Saved
from syncline_sync.cuts import FEW_SPANS, Cuts, chunk_spans
from syncline_sync.disk import Disk
from syncline_sync.pool import compute, leave_to
from syncline_sync.report import contributions_of
from syncline_sync.sources import Difference, Source

PULLED_BYTES_MAX = 1 << 20
"""Of a chunk that is sent: it is in memory several times over for each reader, and chunks of twice
that save a pull 5 % of its CPU where they save a push 25 %."""

T = TypeVar("T")

Cut: TypeAlias = tuple[bool, int, int]
"""A chunk of one span: whether it is of the difference, the span's first element, and how many."""


class Whose(NamedTuple):
    """Who publishes: an instance of a service, a run's fragment."""

    instance: str
    run: str
    fragment: int

    def value(self, saved: Saved, back: int = 0) -> str:
        """The name of the value published as ``saved``, or ``back`` revisions before it.

        No other value ever has that name.
        """
        return "/".join(map(str, (*self, saved.epoch, saved.revision - back)))


class Published:
    """One revision (or mean gradient) as everyone sees it. One loop owns it.

    But for ``sums``, which the pool fills, too: a cut has one sum, whoever takes it.
    """

    def __init__(
        self,
        saved: Saved,
        codec: pb.Codec.ValueType,
        source: Source,
        difference: Difference | None = None,
        *,
        is_announced: bool = False,
    ) -> None:
        """``difference`` is the one to the revision before, for who holds that.

        ``is_announced``: it is still to be published, and nobody may have it whole until then.
        """
        self.saved, self.codec, self.difference = saved, codec, difference
        self.is_announced = is_announced
        """It is still to be published; one that is dropped before that stays so."""
        self._is_settled = asyncio.Event()
        """What was announced is published, or dropped."""
        self._published_s: float | None = None
        """When it was, on the clock that ``header`` is told; None: nobody knows."""
        self._source, self._in_memory = source, difference
        """The difference until its memory is given back; ``difference`` is None once nobody may
        begin to read it."""
        self.sums: dict[Cut, int] = {}
        """Checksums of what was cut out."""
        self.asked: dict[Cut, None] = {}
        """Those that a reader has asked for, the first one first."""
        self._reads: set[asyncio.Future[Any]] = set()
        """Those under way in threads; they may be of a source before this one."""
        self._readers: ThreadPoolExecutor | None = None
        """Those that close its file; None while nobody can have opened one."""
        self._loans = 0
        self._is_dropped = False
        self.is_over = False
        """Whoever reads it still is to end."""

    def difference_to(self, held: str, whose: Whose, where: Extent) -> Difference | None:
        """What takes the value named ``held`` to this one; None: this one is to be sent whole."""
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
            contributions=contributions_of(self.saved),
            instance=whose.instance,
            value=whose.value(self.saved),
            difference_from=difference_from,
            published_ago_s=self.ago_s(now_s),
        )

    def ago_s(self, now_s: float) -> float:
        """How long ago it was published; 0 where nobody knows, or it is still to be."""
        return 0.0 if self._published_s is None else now_s - self._published_s

    def publish(self, now_s: float) -> None:
        """From now on it may be had whole; ``now_s`` is on the clock that ``header`` is told."""
        self.is_announced, self._published_s = False, now_s
        self._is_settled.set()

    async def published(self) -> None:
        """Wait until it may be had whole.

        Raises:
            RevisionGone: it was dropped before that.
        """
        if self.is_announced:
            await self._is_settled.wait()
        if self.is_announced:
            raise RevisionGone("It was dropped before it was published.")

    def cuts(self, where: Extent) -> Cuts:
        """A shard's chunks; as heavy as ``chunk_spans``."""
        return chunk_spans(where, chunk_elements(self.codec, PULLED_BYTES_MAX))

    async def read(
        self, spans: Spans, pool: ThreadPoolExecutor, readers: ThreadPoolExecutor
    ) -> Bytes:
        """The bytes of some spans; in the pool, where that takes longer than to copy them.

        By ``readers`` where it may wait for the disk, and would hold up others' arithmetic.
        They may lie in the value: a reader is done with them before it waits for anything.

        Raises:
            RevisionGone: it was dropped, and its file has been removed.
            StoreDamaged: it is read from its file, and that is damaged.
            StoreError: no file descriptor is left for that.
        """
        if self._source.is_light and len(spans) <= FEW_SPANS:
            return self._source.read(spans)
        if self._source.is_at_disk:
            self._readers = pool = readers
        return await self._done(compute(pool, self._source.read, spans))

    def sum_up(self, cuts: Sequence[Cut], pool: ThreadPoolExecutor) -> None:
        """Have checksums taken in the pool, for who asks for these cuts; nobody waits for them.

        Readers ask for the same ones of each value. On the loop they take a tenth of a pull.
        """
        sources: list[Source | None] = [self._source, self.difference]

        def take() -> None:
            for cut in cuts:
                is_difference, start, length = cut
                source = sources[is_difference]
                if source is not None and source.is_light and cut not in self.sums:
                    self.sums[cut] = crc32c(source.read(np.array([[start, length]], np.int64)))

        if cuts:
            self._begun(compute(pool, take))

    async def move(self, source: Source) -> None:
        """Read from another source from now on; nobody reads the one before when this returns."""
        before, self._source = self._source, source
        if self._reads:
            await asyncio.wait(set(self._reads))
        self._close(before)

    async def hold(self, disk: Disk) -> None:
        """Let whoever reads it go on reading, although its file is about to be removed.

        Where the file cannot be held, the reader is told so at its next read. A commit waits for
        this, so it does not stand in line behind readers.
        """
        if self._loans and self._source.is_at_disk:
            self._readers = disk.readers
            with contextlib.suppress(RevisionGone, StoreError):
                await self._done(disk.do_briefly(self._source.hold))

    @property
    def is_read(self) -> bool:
        """Whether anybody reads it."""
        return self._loans > 0

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
        """Let nobody begin to read it, nor go on reading its difference.

        The difference is in memory alone, where each slow reader would keep another one.
        """
        self._is_dropped = True
        self._is_settled.set()
        self.difference = None
        if self._in_memory is not None:
            self._in_memory.close()
        self._close_unread()

    async def _done(self, work: Awaitable[T]) -> T:
        """Wait for what a thread does with the source, which stays open until it is back."""
        return await asyncio.shield(self._begun(work))  # a call that goes leaves the thread

    def _begun(self, work: Awaitable[T]) -> asyncio.Future[T]:
        reading = asyncio.ensure_future(work)
        self._reads.add(reading)
        reading.add_done_callback(self._read)
        return reading

    def _read(self, reading: asyncio.Future[Any]) -> None:
        if reading.cancelled():  # as the loop ends: its thread may read on, and has the lock
            return
        self._reads.discard(reading)
        reading.exception()  # whoever asked may be gone
        self._close_unread()

    def _close_unread(self) -> None:
        if self._loans or self._reads:
            return
        if self._is_dropped:
            self._close(self._source)
        elif self._source.is_at_disk:  # its name is there: nothing is freed, so it is soon done
            self._source.close()

    def _close(self, source: Source) -> None:
        """Off the loop: who is the last to close a removed file frees all that was in it."""
        if self._readers is None or not source.is_at_disk:
            source.close()
        else:
            leave_to(self._readers, source.close)
