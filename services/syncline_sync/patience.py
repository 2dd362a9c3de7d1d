"""How long one waits for a peer at the other end of a call, before the call is cut.

A timer for each chunk, set and taken back, costs a busy loop more than the chunk's own bookkeeping.
So a call has one, which looks at its end since when there has been nothing, and goes on to when
that is too long ago. Knows nothing of what is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Patience:
    """How long a block's task goes on waiting for its peer; of one loop."""

    def __init__(self, timeout: asyncio.Timeout, wait_s: float) -> None:
        """``timeout`` is around the block, and due when the peer has taken ``wait_s``."""
        self._timeout: asyncio.Timeout | None = timeout
        self._wait_s = wait_s
        self._loop = asyncio.get_running_loop()
        self._since_s: float | None = None
        self._timer = self._loop.call_later(wait_s, self._look)

    def begin(self) -> None:
        """From now on the task waits, with new patience."""
        self._since_s = self._loop.time()

    def end(self) -> None:
        """The task does not wait for its peer any more."""
        self._since_s = None

    def stop(self) -> None:
        """Look no more.

        Lets go of the timeout: it would close a ring (its task, that task's error, our frame) that
        keeps a cut push's bytes until the garbage collector comes.
        """
        self._timer.cancel()
        self._timeout = None

    def _look(self) -> None:
        now_s = self._loop.time()
        due_s = (now_s if self._since_s is None else self._since_s) + self._wait_s
        if due_s > now_s:
            self._timer = self._loop.call_at(due_s, self._look)
        else:
            assert self._timeout is not None, "the timer ends with stop()"
            self._timeout.reschedule(now_s)


@asynccontextmanager
async def patience(wait_s: float) -> AsyncGenerator[Patience]:
    """A block that waits for its peer ``wait_s`` at a time, between ``begin`` and ``end``.

    Raises:
        TimeoutError: it has waited so long at once.
    """
    async with asyncio.timeout(None) as timeout:
        watch = Patience(timeout, wait_s)
        try:
            yield watch
        finally:
            watch.stop()
