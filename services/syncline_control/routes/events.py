"""The event log, as a list and as a live stream (server-sent events)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from syncline_control.operations import events
from syncline_control.routes.asking import After, Control, Following, OfRun
from syncline_control.streams import Streams
from syncline_proto.names import EVENTS_MAX, KIND_PATTERN
from syncline_proto.rest import Event

router = APIRouter(prefix="/v1/events", tags=["events"])

STREAM = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


@router.get("")
async def list_events(
    state: Control,
    run: OfRun = None,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=EVENTS_MAX)] = 200,
    kind: Annotated[str | None, Query(max_length=64, pattern=KIND_PATTERN)] = None,
) -> list[Event]:
    """List events, oldest first: those after an id, or else the newest.

    With `run`, those of that run and, from its creation to its end, those that concern every run
    (sync services); with `kind`, those of that kind.
    """
    return await state.do(events.listed, run, after, limit, kind)


@router.get("/stream", response_class=StreamingResponse, responses={**STREAM})
async def stream_events(
    state: Control,
    streams: Following,
    run: OfRun = None,
    last_event_id: Annotated[int | None, Header(ge=0, le=(1 << 63) - 1)] = None,
) -> StreamingResponse:
    """Stream events as they happen, from `Last-Event-ID` on or from now on.

    Each is `id:` and `data:` with the JSON of an Event; a comment comes every 15 s.
    """
    newest = await state.do(events.newest_id, run)  # an unknown run is refused while it can be
    after = last_event_id if last_event_id is not None else newest
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return _Stream(streams, streams.lines(run, after), headers)


class _Stream(StreamingResponse):
    """Has its place from before its first byte to its last; with none left, it never begins."""

    def __init__(
        self, streams: Streams, lines: AsyncIterator[str], headers: dict[str, str]
    ) -> None:
        super().__init__(lines, 200, headers, "text/event-stream")
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.place():
            await super().__call__(scope, receive, send)
