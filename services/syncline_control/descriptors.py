"""File descriptors: how many there are, what connections may take of them, and when there are none.

Whoever connects takes one without being asked, so a part is kept back: the database and the page
need some, and a burst of connections is accepted before anybody can count it.
"""

from __future__ import annotations

import asyncio
import errno
import time
from dataclasses import dataclass
from typing import Any

import structlog

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


def raise_limit() -> int:
    """Let this process have as many descriptors as it may give itself; return how many."""
    try:
        import resource
    except ImportError:  # no Unix
        return 512
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # the hard one may be over what the system has (macOS)
        hard = soft
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


class Shortage:
    """The event loop's handler of exceptions, which says of a shortage little and seldom.

    asyncio has a traceback for each connection that it could not accept: thousands in a second.
    """

    def __init__(self) -> None:
        self._said_at = -SAY_EVERY_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
            return
        now = time.monotonic()
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            advice = "start it with more (ulimit -n), or end who connects so often"
            log.warning("control_plane.no_descriptors", reason=error.strerror, advice=advice)
