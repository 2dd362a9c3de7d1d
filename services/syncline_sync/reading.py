"""What comes over the wire must be the method's message, or the call ends in INVALID_ARGUMENT.

gRPC itself would answer UNKNOWN and log a traceback, as if the fault were ours. Stands before
every method of a server, health and reflection too; knows nothing of what the messages say.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from syncline_proto.errors import InvalidRequest
from syncline_sync.guard import Context, Doorkeeper, Handler, alike, refuse

log = structlog.get_logger()

Parse = Callable[[bytes], Any]


class Reader(Doorkeeper):
    """Parses the messages of every call, in place of gRPC."""

    def before(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        return _reading(handler, details.method)


def _reading(handler: Handler, method: str) -> Handler:
    """A handler of the same kind that takes bytes, and refuses those that are no message."""
    parse: Parse = handler.request_deserializer  # pyright: ignore[reportAssignmentType]
    read = _each if handler.request_streaming else _one
    call: Any = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )

    async def answered(request: Any, context: Context) -> Any:
        try:
            return await call(read(parse, method, request), context)
        except InvalidRequest as error:
            await refuse(context, error)

    async def streamed(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async for answer in call(read(parse, method, request), context):
                yield answer
        except InvalidRequest as error:
            await refuse(context, error)

    streams = inspect.isasyncgenfunction(call)
    return alike(handler, streamed if streams else answered, handler.response_serializer)


def _one(parse: Parse, method: str, data: bytes) -> Any:
    try:
        return parse(data)
    except DecodeError as error:
        log.warning("bytes that are no message", method=method, why=str(error))
        raise InvalidRequest(f"request: {error}; send the method's own message.") from error


async def _each(parse: Parse, method: str, parts: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for data in parts:
        yield _one(parse, method, data)
