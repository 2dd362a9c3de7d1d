"""Event streams: what is new is read and written down once for all who follow the same run.

A stream that is behind reads by itself until it is not; a slow reader holds up nothing but itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from syncline_control.notify import Together
from syncline_control.operations import events
from syncline_control.state import STREAMS_MAX, State
from syncline_proto.errors import Overloaded, SynclineError

PAGE = 500
"""Events read at once for a stream."""

KEEP_ALIVE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A page of events as a stream says it."""

    text: str
    upto: int
    more: bool


class Streams:
    """The event streams of one control plane."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._open = 0
        self._together = Together[Told]()

    @contextmanager
    def place(self) -> Generator[None]:
        """Count a stream for as long as it is open.

        Raises:
            Overloaded: ``STREAMS_MAX`` are open already.
        """
        if self._open >= STREAMS_MAX:
            raise Overloaded(f"{STREAMS_MAX} event streams are open already; ask again later.")
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def lines(self, run: str | None, after: int) -> AsyncIterator[str]:
        """Yield what a stream says, until the control plane ends."""
        yield ": the log of the control plane\nretry: 2000\n\n"
        bell = self._state.events_bell
        while not bell.closed:
            ring = bell.listen()
            try:
                told = await self._next(ring, run, after)
            except SynclineError:
                return  # too late for a status; the reader comes back and is told why
            after = told.upto
            if told.text:
                yield told.text
            while not told.more and not await bell.heard(ring, KEEP_ALIVE_S):
                if bell.closed:
                    return
                yield ": still here\n\n"

    async def _next(self, ring: asyncio.Event, run: str | None, after: int) -> Told:
        async def read() -> Told:
            page = await self._state.do(events.page, run, after, PAGE)
            said = (f"id: {one.id}\ndata: {one.model_dump_json()}\n\n" for one in page.events)
            return Told(text="".join(said), upto=page.upto, more=page.more)

        return await self._together.read((ring, run, after), read)
