"""Who may call: with a token configured, whoever sends it.

Without one everybody may, and the settings see to it that only this machine can reach us then.
"""

from __future__ import annotations

import hmac
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from syncline_proto.errors import Forbidden
from syncline_sync.statuses import AnyContext, refuse

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_REFUSED = Forbidden("The sync service asks for a token: set SYNCLINE_TOKEN to the run's.")


class Doorkeeper(grpc.aio.ServerInterceptor):
    """Stands before every method that there is."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Handler | None = await continuation(handler_call_details)
        return handler and self.before(handler, handler_call_details)

    @abstractmethod
    def before(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        """What answers the call in place of ``handler``."""


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


async def _refused(_: Any, context: AnyContext) -> None:
    await refuse(context, _REFUSED)


_REFUSING: Handler = grpc.stream_stream_rpc_method_handler(_refused)
"""Refuses a call of any kind before anything of its request is read."""
