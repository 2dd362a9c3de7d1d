"""What stands before every method of a server: it may look at a call, and answer in its place."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
AnyContext: TypeAlias = grpc.aio.ServicerContext[Any, Any]

Answers: TypeAlias = Callable[[Any, AnyContext], Awaitable[Any]]
"""A method that answers once, or writes its answers itself."""

Streams: TypeAlias = Callable[[Any, AnyContext], AsyncGenerator[Any]]
"""A method that yields its answers."""


class Doorkeeper(grpc.aio.ServerInterceptor):
    """Stands before every method that there is; the first of a server's is the outermost."""

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


class Surrounding(Doorkeeper):
    """Stands around a method in the same way whoever calls it: that is made with the first call.

    There are as many as a server has methods.
    """

    def __init__(self) -> None:
        self._made: dict[Handler, Handler] = {}

    def before(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        """What was made around the handler, or is now."""
        made = self._made.get(handler)
        if made is None:
            made = self._made[handler] = self.around(handler, details.method)
        return made

    @abstractmethod
    def around(self, handler: Handler, method: str) -> Handler:
        """What answers the calls of a method in place of ``handler``."""


def replaced(
    handler: Handler,
    answered: Callable[[Answers], Answers],
    streamed: Callable[[Streams], Streams],
    *,
    parse: Callable[[bytes], Any] | None,
    write: Callable[[Any], bytes] | None,
) -> Handler:
    """A handler of the same kind around another call, with these forms of its messages."""
    call: Any = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    around = streamed if inspect.isasyncgenfunction(call) else answered
    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(around(call), parse, write)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(around(call), parse, write)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(around(call), parse, write)
    return grpc.unary_unary_rpc_method_handler(around(call), parse, write)
