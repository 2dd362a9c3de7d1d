"""What a fragment has done at the disk behind its rounds: in a lull, or once somebody waits for it.

With durability "async" that is the commit of what was published last; else, older files are
removed. A mark in the store says, before anybody sees it, that the disk may not have what is
published; it goes at a clean end, and once nothing more is to be published so. Knows nothing of
what is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from syncline_proto.errors import StoreError
from syncline_sync.disk import Disk
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.lull import Lull
from syncline_sync.pool import P


class Behind:
    """One fragment's, one thing after another; any number may wait until it is ``done``."""

    def __init__(
        self, store: FragmentStore, disk: Disk, lull: Lull, fail: Callable[[BaseException], None]
    ) -> None:
        """``fail`` is told what went wrong, whether or not anybody waits."""
        self._store, self._disk, self._lull, self._fail = store, disk, lull, fail
        self._task: asyncio.Task[None] | None = None
        """What is to be done, or was last."""
        self._hurry = asyncio.Event()
        """Of that: somebody waits for it."""
        self._is_marked = False

    @property
    def is_done(self) -> bool:
        """Whether nothing is done, nor waits to be."""
        return self._task is None or self._task.done()

    async def mark(self) -> None:
        """Have it said in the store, once, that what is published may not be on the disk.

        Raises:
            StoreError: the disk refuses.
        """
        if not self._is_marked:
            await self._disk.do(self._store.fall_behind)
            self._is_marked = True

    def unmark(self) -> None:
        """Have the mark gone once all is done: what comes is written before it is published.

        Not before: a kill until then may lose what was seen. Where the disk has refused that, the
        mark stays.
        """
        if self._is_marked:
            self._is_marked = False
            self._task = asyncio.create_task(self._unmark(self._task))
            self._task.add_done_callback(self._see)

    def do(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do it in a lull; what there was before must be ``done``."""
        assert self.is_done, "one thing after another"
        self._hurry = asyncio.Event()
        self._task = asyncio.create_task(self._in_lull(partial(work, *args, **kwargs)))
        self._task.add_done_callback(self._see)

    async def done(self) -> None:
        """Have it done soon, and wait for that; who stops waiting stops nothing.

        Raises:
            StoreError: the disk has refused it.
        """
        if self._task is not None:
            self._hurry.set()
            await asyncio.shield(self._task)

    async def end(self) -> None:
        """Nothing more will come: see all done, and the mark gone where the disk took it."""
        if self._task is None:
            return
        self._hurry.set()
        await asyncio.wait({self._task})
        if self._is_marked and self._task.exception() is None:
            with suppress(StoreError):  # the mark stays, and costs replicas a pull
                await self._disk.do(self._store.catch_up)

    async def _in_lull(self, work: Callable[[], object]) -> None:
        await self._lull.wait(self._hurry)
        await self._disk.do(work)

    async def _unmark(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        await self._disk.do(self._store.catch_up)

    def _see(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)
