"""The calls that copy checkpoints: how many at a time, on which threads, and how they end.

Each call's copies have threads of their own: a slow store delays no merge, and no other call. A
call that ends, however it ends, stops its copies at their next piece, and counts until its threads
are back: a store that hangs takes up calls, and never more than those. The end of the process waits
for them a moment. Knows nothing of runs, files or messages.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import structlog

from syncline_proto.errors import CheckpointError, Overloaded, Unreachable
from syncline_sync.disk import ENDING
from syncline_sync.pool import compute_to_the_end

log = structlog.get_logger()

T = TypeVar("T")

CALLS_MAX = 8
"""At a time, of all calls here."""

COPIES = 2
"""Files of a call on their way at a time."""

TELL_S = 1.0
"""The longest silence in a stream whose bytes are on their way."""

STILL_S = 30.0
"""Where no byte has moved for so long the log says so."""

END_S = 3.0
"""How long the end waits for stores that are in the midst of a piece."""


class Copying:
    """How far the copies of one call are; threads count, the loop reads."""

    def __init__(self, total: int, said: str) -> None:
        """``said`` is what is not done until it is over."""
        self.total, self.said = total, said
        self.done = 0
        self.is_over = False
        self._seen, self._since_s = -1, math.inf

    def moved(self, count: int) -> None:
        """Count ``count`` more bytes as copied.

        Raises:
            CheckpointError: the call is over, and so is the copy.
        """
        if self.is_over:
            raise CheckpointError("Nobody waits for this copy any more.")
        self.done += count  # off by a piece at worst, where two threads meet: it is shown, not used

    def see(self, now_s: float) -> None:
        """Tell the log where nothing moves: once, until something does."""
        if self.done != self._seen:
            self._seen, self._since_s = self.done, now_s
        elif now_s - self._since_s >= STILL_S:
            self._since_s = math.inf
            seconds = f"{STILL_S:g}"
            log.warning("a checkpoint's store stands still", seconds=seconds, left=self.said)


class Copies:
    """All calls that copy. One loop owns it; only their jobs run on threads."""

    def __init__(self) -> None:
        self._brief = ThreadPoolExecutor(CALLS_MAX, "checkpoints-brief")
        """For what is short: a thread for each call."""
        self._calls: dict[object, str] = {}
        """What is under way, in words."""
        self._all_done = asyncio.Event()
        self._is_closing = False

    @contextmanager
    def call(self, said: str) -> Generator[None]:
        """Count a call; ``said`` is what is not done until it is over.

        Raises:
            Unreachable: the process ends.
            Overloaded: there are too many.
        """
        if self._is_closing:
            raise Unreachable(ENDING)
        if len(self._calls) >= CALLS_MAX:
            raise Overloaded(f"{CALLS_MAX} checkpoints are being saved or restored; try later.")
        self._calls[call := object()] = said
        try:
            yield
        finally:
            del self._calls[call]
            self._see_done()

    async def followed(
        self, jobs: Sequence[Callable[[], T]], copying: Copying
    ) -> AsyncGenerator[list[T]]:
        """Do jobs on threads of their own; yield what is done, at least every ``TELL_S``."""
        pool = ThreadPoolExecutor(COPIES, "checkpoints")
        copies = [pool.submit(job) for job in jobs]
        pending = {asyncio.wrap_future(copy) for copy in copies}
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=TELL_S, return_when=asyncio.FIRST_COMPLETED
                )
                copying.see(time.monotonic())
                yield await asyncio.gather(*done)
        finally:
            copying.is_over = True
            # Those that have begun are waited for: they have files open, and may make others.
            begun = [asyncio.wrap_future(copy) for copy in copies if not copy.cancel()]
            await asyncio.gather(*begun, *pending, return_exceptions=True)
            pool.shutdown(wait=False)  # nothing is left to do

    async def do(self, work: Callable[..., T], *args: Any) -> T:
        """Do what is short on a thread, and return its result."""
        # A call that goes does not take the thread with it, and counts until that is back.
        return await compute_to_the_end(self._brief, work, *args)

    async def tidy(self, work: Callable[..., None], *args: Any) -> None:
        """Take away what a call has left; at the end of the process that is for the next start."""
        if not self._is_closing:
            await self.do(work, *args)

    async def close(self) -> list[str]:
        """Begin no more, and wait a little for what is under way: it ends at its next piece.

        Returns:
            What hangs, in words; its threads may never be back.
        """
        self._is_closing = True
        self._see_done()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all_done.wait(), END_S)
        self._brief.shutdown(wait=not self._calls, cancel_futures=True)
        return list(self._calls.values())

    def _see_done(self) -> None:
        if self._is_closing and not self._calls:
            self._all_done.set()
