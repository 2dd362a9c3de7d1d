"""A sync service's line to a control plane that the test makes up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import httpx

from syncline_proto.rest import Membership, SyncServiceHello
from syncline_sync.control import ControlLink
from syncline_sync.report_queue import ReportQueue

HELLO = SyncServiceHello(name="sync-0", address="127.0.0.1:1", instance="i")

Handler: TypeAlias = Callable[[httpx.Request], httpx.Response | Awaitable[httpx.Response]]
"""Answers a request as the control plane."""


async def nobody(_: Membership) -> None:
    raise AssertionError("no membership was told")


@asynccontextmanager
async def link_to(
    handler: Handler,
    adopt: Callable[[Membership], Awaitable[None]] = nobody,
    reports: ReportQueue | None = None,
    snapshot: Path = Path("membership.json"),
    url: str = "http://control",
    tell_anew: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[ControlLink]:
    """A link that does not run yet."""
    transport = httpx.MockTransport(handler)  # pyright: ignore[reportArgumentType]
    async with httpx.AsyncClient(transport=transport) as client:
        queue = ReportQueue() if reports is None else reports
        yield made(client, url, adopt, queue, snapshot, tell_anew)


def made(
    client: httpx.AsyncClient,
    url: str,
    adopt: Callable[[Membership], Awaitable[None]],
    reports: ReportQueue,
    snapshot: Path,
    tell_anew: Callable[[str], None] = lambda _: None,
) -> ControlLink:
    """A link that has nothing to vote on, and whose disk is any thread."""
    at_disk = asyncio.to_thread
    return ControlLink(client, url, HELLO, adopt, reports, snapshot, list, tell_anew, at_disk)


@asynccontextmanager
async def running(link: ControlLink) -> AsyncIterator[asyncio.Task[None]]:
    """Inside, the link runs."""
    task = asyncio.create_task(link.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
