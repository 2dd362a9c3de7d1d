"""Who may call: with a token configured, whoever sends it.

Without one everybody may, and the settings see to it that only this machine can reach us then.
"""

from __future__ import annotations

import hmac
from typing import Any

import grpc

from syncline_proto.errors import Forbidden
from syncline_sync.doorkeeper import AnyContext, Doorkeeper, Handler


class TokenGuard(Doorkeeper):
    """Refuses calls whose metadata lack `authorization: Bearer TOKEN`."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def before(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        return handler if self._knows(details) else _REFUSING

    def _knows(self, details: grpc.HandlerCallDetails) -> bool:
        given = dict(details.invocation_metadata or ()).get("authorization", "")
        sent = given.encode() if isinstance(given, str) else given
        return hmac.compare_digest(sent, self._expected)


async def _refused(_request: Any, context: AnyContext) -> None:
    if "authorization" not in dict(context.invocation_metadata() or ()):
        raise Forbidden("The sync service asks for a token: set SYNCLINE_TOKEN to the run's.")
    raise Forbidden(
        "The sync service has another token: set SYNCLINE_TOKEN to what its SYNCLINE_SYNC_TOKEN is."
    )


_REFUSING: Handler = grpc.stream_stream_rpc_method_handler(_refused)
"""Refuses a call of any kind before anything of its request is read."""
