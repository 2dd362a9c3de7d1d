"""What routes share: how they reach the state, and what names look like in a path.

What a route depends on is ``async``: anything else would go through a thread, for each request.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from syncline_control.metrics import Metrics
from syncline_control.pulse import Pulse
from syncline_control.state import State
from syncline_control.streams import Streams
from syncline_proto.names import NAME_PATTERN


async def _state(request: Request) -> State:
    return request.app.state.control


async def _pulse(request: Request) -> Pulse:
    return request.app.state.pulse


async def _streams(request: Request) -> Streams:
    return request.app.state.streams


async def _metrics(request: Request) -> Metrics:
    return request.app.state.metrics


Control = Annotated[State, Depends(_state)]
Beats = Annotated[Pulse, Depends(_pulse)]
Following = Annotated[Streams, Depends(_streams)]
Registry = Annotated[Metrics, Depends(_metrics)]

RunName = Annotated[str, Path(pattern=NAME_PATTERN, examples=["my-run"])]
ReplicaName = Annotated[str, Path(pattern=NAME_PATTERN, examples=["replica-0"])]
ServiceName = Annotated[str, Path(pattern=NAME_PATTERN, examples=["sync-0"])]

OfRun = Annotated[str | None, Query(pattern=NAME_PATTERN, examples=["my-run"])]
After = Annotated[int | None, Query(ge=0, le=(1 << 63) - 1)]
WaitSeconds = Annotated[float, Query(ge=0, le=60)]
