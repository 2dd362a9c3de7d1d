"""The event log, as a list and as a live stream (server-sent events)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from syncline_control.operations import events
from syncline_control.routes.asking import After, Control
from syncline_control.state import State
from syncline_proto.errors import SynclineError
from syncline_proto.rest import Event

router = APIRouter(prefix="/v1/events", tags=["events"])

PAGE = 500
"""Events read at once for a stream; a slow reader holds up nobody but himself."""

KEEP_ALIVE_S = 15.0

STREAM = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


@router.get("")
async def list_events(
    state: Control,
    run: str | None = None,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=5000)] = 200,
) -> list[Event]:
    """List events, oldest first: those after an id, or else the newest.

    With `run`, those of that run and those that concern every run (sync services).
    """
    return await state.do(events.listed, run, after, limit)


@router.get("/stream", response_class=StreamingResponse, responses={**STREAM})
async def stream_events(
    state: Control,
    run: str | None = None,
    last_event_id: Annotated[int | None, Header(ge=0, le=(1 << 63) - 1)] = None,
) -> StreamingResponse:
    """Stream events as they happen, from `Last-Event-ID` on or from now on.

    Each is `id:` and `data:` with the JSON of an Event; a comment comes every 15 s.
    """
    newest = await state.do(events.newest_id, run)  # an unknown run is refused while it can be
    after = last_event_id if last_event_id is not None else newest
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_lines(state, run, after), 200, headers, "text/event-stream")


async def _lines(state: State, run: str | None, after: int) -> AsyncIterator[str]:
    yield ": the log of the control plane\nretry: 2000\n\n"
    bell = state.events_bell
    while not bell.closed:
        ring = bell.listen()
        try:
            page = await state.do(events.listed, run, after, PAGE)
            if not page and not await bell.heard(ring, KEEP_ALIVE_S) and not bell.closed:
                yield ": still here\n\n"
        except SynclineError:
            return  # too late for a status; the reader comes back and is told why
        for event in page:
            after = event.id
            yield f"id: {event.id}\ndata: {event.model_dump_json()}\n\n"
