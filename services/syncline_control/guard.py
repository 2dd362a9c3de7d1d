"""The gate before every request: where it may come from, who may ask, whether it may have a body.

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
from syncline_control.intake import Body, BodyTooLarge, Intake, announced
from syncline_control.metrics import Metrics
from syncline_proto.errors import Forbidden, SynclineError
from syncline_proto.settings import is_loopback


class Guard:
    """Wraps the app.

    Args:
        token: whoever calls below /v1 must send it as a bearer token; None: anybody may.
        only_here: refuse requests to any name but this machine's own. A name of another site that
            leads to loopback would let the pages of that site act here (DNS rebinding).
    """

    def __init__(
        self, app: ASGIApp, *, token: str | None, only_here: bool, metrics: Metrics
    ) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._only_here = only_here
        self._metrics = metrics
        self._intake = Intake()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = self._measured(scope, send)
        headers = Headers(scope=scope)
        with Body(self._intake) as body:
            try:
                self._check_host(headers)
                self._check_origin(scope, headers)
                self._check_token(scope, headers)
                if not scope["path"].startswith("/v1") and announced(headers) != 0:
                    raise BodyTooLarge("Only requests below /v1 have a body; send none here.")
                receive = await body.read(headers, receive)
            except SynclineError as error:
                await problems.of_error(error)(scope, receive, send)
                return
            await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._only_here and not is_loopback(_name_in(f"//{host}")):
            raise Forbidden(
                "Without a token this control plane answers only to localhost and 127.0.0.1; "
                "ask it under such a name, or start it with --token."
            )

    def _check_token(self, scope: Scope, headers: Headers) -> None:
        if self._token is None or not scope["path"].startswith("/v1"):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise problems.Unauthorized(
                "This control plane wants a token; give the one that it was started with."
            )
        if not hmac.compare_digest(given.strip().encode(), self._token):
            raise problems.Unauthorized("The token is wrong; ask the operator for the right one.")

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Refuse acts that a page of another site makes a browser do."""
        origin = headers.get("origin")
        if origin is None or scope["method"] in ("GET", "HEAD"):
            return
        if not _name_in(origin) or urlsplit(origin).netloc != headers.get("host"):
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


def _name_in(address: str) -> str:
    """Return the host's name in lower case, "" if there is none that can be told."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
