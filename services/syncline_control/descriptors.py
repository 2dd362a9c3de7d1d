"""File descriptors: what connections may take of them, and what is said when there are none.

Whoever connects takes one without being asked, so a part is kept back: the database and the page
need some, and a burst of connections is accepted before anybody can count it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import structlog

from syncline_proto.descriptors import none_left

CONNECTIONS_MAX = 10_000
"""Half heads may hold 160 MB, for ``server.HEAD_S``."""

BACKLOG_MAX = 2_048
"""Connections that wait to be accepted; all of them are, in one turn of the event loop."""

SAY_EVERY_S = 60.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the network may take; never more than three quarters of all descriptors."""

    connections: int
    backlog: int

    @classmethod
    def of(cls, descriptors: int) -> Share:
        return cls(
            connections=min(CONNECTIONS_MAX, descriptors // 2),
            backlog=min(BACKLOG_MAX, descriptors // 4),
        )


class Shortage:
    """The event loop's handler of exceptions, which says of a shortage little and seldom.

    asyncio has a traceback for each connection that it could not accept: thousands in a second.
    """

    def __init__(self) -> None:
        self._said_at = -SAY_EVERY_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and none_left(error)):
            loop.default_exception_handler(context)
            return
        now = time.monotonic()
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            advice = "start it with more (ulimit -n), or end who connects so often"
            log.warning("control_plane.no_descriptors", reason=error.strerror, advice=advice)
