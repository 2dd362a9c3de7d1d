"""Bodies on their way in: how large one is, of how many parts, how long it takes, what all hold.

A body is counted for as long as somebody works with it, so that memory is bounded however many
senders there are. Small ones are not counted: a heartbeat must not wait for large reports.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from syncline_proto.errors import InvalidRequest, Overloaded, Unreachable

BODY_BYTES_MAX = 8 << 20
"""Of one body."""

VALUES_MAX = 1 << 19
"""In one body, as many as it has commas and opening brackets and braces, in its texts too. A sync
service's 128 rounds of 96 contributions, each of data in three ranges, have 320,000."""

GROUPS_MAX = 1 << 16
"""Lists and objects among them, which cost most; those rounds have 62,000. Within the bytes alone,
empty lists could come to 2.8 million and hold up everybody for seconds."""

BODIES_BYTES_MAX = 64 << 20
"""Of all bodies together, without the first ``SMALL_BYTES`` of each."""

SMALL_BYTES = 64 << 10
"""As much as the server itself holds for a connection."""

BODY_S = 30.0
"""So long may a body take."""


class BodyTooLarge(InvalidRequest):
    """The request's body is over the bound."""

    http_status = 413


class BodyTooSlow(Unreachable):
    """The request's body did not come in time."""

    http_status = 408


class BodyCut(InvalidRequest):
    """The connection ended before the request's body did."""


class Intake:
    """What the bodies of one control plane hold together."""

    def __init__(self) -> None:
        self.held = 0
        """Bytes."""


def announced(headers: Headers) -> int | None:
    """Bytes of the body that follows the head, None if the sender does not say."""
    if "transfer-encoding" in headers:
        return None
    size = headers.get("content-length", "0")
    return int(size) if size.isdecimal() else 0


class Body:
    """The body of one request; as a context manager, it is counted until the end."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._intake.held -= self._held

    async def read(self, headers: Headers, receive: Receive) -> Receive:
        """Read the body and return a ``receive`` that gives it in one piece.

        Raises:
            BodyTooLarge: it is over a bound; no more bytes of it were read than that.
            BodyTooSlow: it did not come within ``BODY_S``.
            Overloaded: all bodies together are over their bound.
            BodyCut: nobody is there any more, and what came of the body must not be acted on.
        """
        if (announced(headers) or 0) > BODY_BYTES_MAX:
            raise _too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_S):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        if announced(headers) != 0:
                            raise BodyCut("The connection ended before the body did.")
                        break
                    parts.append(message.get("body", b""))
                    more = message.get("more_body", False)
                    size += len(parts[-1])
                    self._count(size)
        except TimeoutError:
            why = f"The body did not come within {BODY_S:g} s; send it again."
            raise BodyTooSlow(why) from None
        whole = b"".join(parts)
        groups = whole.count(b"[") + whole.count(b"{")
        if groups > GROUPS_MAX or groups + whole.count(b",") > VALUES_MAX:
            many = f"{VALUES_MAX:,} values or {GROUPS_MAX:,} lists and objects"
            raise BodyTooLarge(f"The body has over {many}; send fewer at once.")
        first: Message | None = {"type": "http.request", "body": whole, "more_body": False}

        async def replay() -> Message:
            nonlocal first
            message, first = first, None
            return message if message is not None else await receive()

        return replay

    def _count(self, size: int) -> None:
        if size > BODY_BYTES_MAX:
            raise _too_large()
        grown = max(0, size - SMALL_BYTES) - self._held
        if grown > 0 and self._intake.held + grown > BODIES_BYTES_MAX:
            raise Overloaded("The bodies of too many requests are being read; try again.")
        self._held += grown
        self._intake.held += grown


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body is over {BODY_BYTES_MAX >> 20} MiB; send less at once.")
