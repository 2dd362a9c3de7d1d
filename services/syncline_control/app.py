"""The app: routes, page, errors and guard around a state. Nothing is global.

While the app lives (its lifespan) a task looks after the leases; under a bare ASGI transport, as
in tests, nobody does unless asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import structlog
from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from syncline_control import problems
from syncline_control.guard import Guard
from syncline_control.metrics import Metrics
from syncline_control.pulse import Pulse
from syncline_control.routes import (
    data,
    events,
    health,
    membership,
    replicas,
    reports,
    runs,
    services,
)
from syncline_control.routes.listing import Listing
from syncline_control.state import State
from syncline_control.streams import Streams
from syncline_proto.errors import SynclineError

PAGE = Path(__file__).parent / "page"

ABOUT = """Runs, replicas, leases, settings and events of Syncline.

Every error is `application/problem+json`; its `code` is for programs, its `detail` for people.
If the control plane has a token, every call below /v1 wants it: `Authorization: Bearer …`."""

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

log = structlog.get_logger()


def create_app(
    state: State,
    *,
    token: str | None = None,
    only_here: bool = False,
    on_fault: Callable[[], None] | None = None,
) -> FastAPI:
    """Return the control plane's app over an open state, which stays the caller's to close.

    Args:
        token: what callers below /v1 must send as a bearer token; None: nothing.
        only_here: answer only to names of this machine; right for loopback without a token.
        on_fault: called when leases are looked after no more, which no server should outlive.
    """

    async def keep() -> None:
        try:
            await _look_after_leases(state)
        except Exception:  # the outermost loop of this task
            log.exception("leases.abandoned")
            if on_fault is not None:
                on_fault()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        keeper = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper

    app = FastAPI(
        title="Syncline control plane",
        version=version("syncline"),
        description=ABOUT,
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.control = state
    app.state.pulse = Pulse(state)
    app.state.streams = Streams(state)
    app.state.metrics = Metrics()
    app.state.reading = asyncio.Lock()  # of large bodies
    app.state.listing = Listing()
    for routes in (runs, replicas, data, membership, services, reports, events, health):
        app.include_router(routes.router, responses=problems.RESPONSES)
    app.add_api_route("/", _index, include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE))
    problems.install(app)
    metrics = app.state.metrics
    app.add_middleware(Guard, token=token, only_here=only_here, metrics=metrics)
    return app


async def _index() -> FileResponse:
    return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)


async def _look_after_leases(state: State) -> None:
    """Review leases for ever; a database that fails is asked again, and nobody pays for it."""
    failing = False
    while True:
        every_s = 1.0
        try:
            every_s = await state.review_leases()
            failing = False
        except SynclineError as error:
            if not failing:
                log.error("leases.not_reviewed", reason=error.message)
            failing = True
        await asyncio.sleep(every_s)
