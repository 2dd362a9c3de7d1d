"""The gate before every request: how large it may be, where it may come from, who may ask.

Plain ASGI, outside the routes, so that nothing is read or parsed for somebody who may not ask.
It also measures how long answers take.
"""

from __future__ import annotations

import hmac
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from syncline_control import problems
from syncline_control.metrics import Metrics
from syncline_proto.errors import Forbidden, InvalidRequest, SynclineError

BODY_BYTES_MAX = 8 << 20


class BodyTooLarge(InvalidRequest):
    """The request's body is over the bound."""

    http_status = 413


class Guard:
    """Wraps the app.

    Args:
        token: whoever calls below /v1 must send it as a bearer token; None: anybody may.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, metrics: Metrics) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = self._measured(scope, send)
        try:
            headers = Headers(scope=scope)
            self._check_origin(scope, headers)
            self._check_token(scope, headers)
            receive = await _whole_body(headers, receive)
        except SynclineError as error:
            await problems.of_error(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_token(self, scope: Scope, headers: Headers) -> None:
        if self._token is None or not scope["path"].startswith("/v1"):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise problems.Unauthorized(
                "This control plane wants a token; set SYNCLINE_TOKEN or give --token."
            )
        if not hmac.compare_digest(given.strip().encode(), self._token):
            raise problems.Unauthorized("The token is wrong; ask the operator for the right one.")

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Refuse acts that a page of another site makes a browser do."""
        origin = headers.get("origin")
        if origin is None or scope["method"] in ("GET", "HEAD"):
            return
        if urlsplit(origin).netloc != headers.get("host"):
            raise Forbidden(f"A page of {origin} may not act here; open the control plane's own.")

    def _measured(self, scope: Scope, send: Send) -> Send:
        """Note the time until an answer starts; a stream has no other that would mean anything."""
        started = time.perf_counter()

        async def measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "unmatched")
                seconds = time.perf_counter() - started
                self._metrics.answered(scope["method"], route, message["status"], seconds)
            await send(message)

        return measured


async def _whole_body(headers: Headers, receive: Receive) -> Receive:
    """Read the body and return a ``receive`` that gives it in one piece.

    Raises:
        BodyTooLarge: it is over the bound; no more of it was read than that.
    """
    announced = headers.get("content-length", "0")
    size = int(announced) if announced.isdecimal() else 0
    parts: list[bytes] = []
    more = True
    while more and size <= BODY_BYTES_MAX:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
        size = max(size, sum(map(len, parts)))
    if size > BODY_BYTES_MAX:
        raise BodyTooLarge(f"The body is over {BODY_BYTES_MAX >> 20} MiB; send less at once.")
    first: Message | None = {"type": "http.request", "body": b"".join(parts), "more_body": False}

    async def replay() -> Message:
        nonlocal first
        message, first = first, None
        return message if message is not None else await receive()

    return replay
