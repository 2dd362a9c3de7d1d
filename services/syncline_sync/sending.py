"""One pull's value on its way to its reader: cut, sealed and written, chunk by chunk.

A chunk is made when the one before it is taken, and none is kept while others have their turn;
whose turn it is, ``senders.py`` says. The last one waits until the value is published.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from syncline_proto.codec import Bytes
from syncline_proto.errors import Unreachable
from syncline_proto.parts import Chunk, write_chunk
from syncline_proto.spans import Extent, Spans
from syncline_sync.cuts import FEW_SPANS, Cuts
from syncline_sync.patience import Patience, patience
from syncline_sync.run import RunHost
from syncline_sync.senders import Senders
from syncline_sync.shared import Shared
from syncline_sync.shelf import Loan

Write: TypeAlias = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A ``loan`` of a run, sent with ``write``, which waits until the reader takes enough."""

    shared: Shared
    run: RunHost
    loan: Loan
    write: Write

    async def send(self, head: bytes, where: Extent, senders: Senders) -> None:
        """Write the header, and what of the value lies ``where``, turn by turn.

        Raises:
            Overloaded: too many pulls wait already, or too many of the run's cannot end.
            Unreachable: the reader does not take them.
            RevisionGone: the reader has taken too long, or the value is not published after all.
        """
        cuts, wait_s = self.loan.cuts(where), self.run.settings.timeouts.call_s
        left, heavy = where.elements, where.span_count > FEW_SPANS
        if not left:
            await self.loan.published()
        try:
            async with patience(wait_s) as its:
                its.begin()
                await self.write(head)
            while left:
                if left <= cuts.elements:  # before its turn: nobody else's is taken up by this
                    await self.loan.published()
                async with senders.turn(self.run.name) as end_s, patience(wait_s) as its:
                    while left and time.monotonic() < end_s:
                        if left <= cuts.elements and not self.loan.is_to_end:
                            break
                        left -= await self._send_next(cuts, its, heavy=heavy)
        except TimeoutError:
            why = f"pull: nothing was taken for {wait_s:g} s; pull again."
            raise Unreachable(why) from None

    async def _send_next(self, cuts: Cuts, its: Patience, *, heavy: bool) -> int:
        """Send a chunk; return its elements. ``heavy`` ones are cut in the pool.

        Raises:
            TimeoutError: the reader has not taken enough of what came before it, for too long.
        """
        spans = await self.shared.compute(next, cuts) if heavy else next(cuts)
        self.loan.check(time.monotonic(), self.run.settings.timeouts.give_up_s)
        shared = self.shared
        data = await self.loan.read(spans, shared.pool, shared.disk.readers)
        part, size = self._sealed(spans, data)
        elements = int(spans[:, 1].sum())
        del spans, data  # the reader may take long
        self.shared.lull.moved()
        its.begin()
        await self.write(part)
        its.end()
        self.run.metrics.moved("down", size)
        return elements

    def _sealed(self, spans: Spans, data: Bytes) -> tuple[bytes, int]:
        """The message of a chunk, and its payload's size; that is not kept while it waits."""
        return write_chunk(Chunk(data, self.loan.checksum(spans, data))), len(data)
