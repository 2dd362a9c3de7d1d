"""What comes over the wire must be the method's message, or the call ends in INVALID_ARGUMENT.

gRPC itself would answer UNKNOWN and log a traceback, as if the fault were ours. Stands before
every method of a server, health and reflection too; knows nothing of what the messages say.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from syncline_proto.errors import InvalidRequest, Overloaded
from syncline_proto.parts import read_chunk
from syncline_sync.guard import Doorkeeper, Handler
from syncline_sync.statuses import AnyContext, refuse

log = structlog.get_logger()

Parse = Callable[[bytes], Any]
Write = Callable[[Any], bytes]

LARGE = 1 << 16
"""Bytes from which on a request counts, and fields in it that nobody here knows are not kept."""

HELD_MAX = 64 << 20
"""Bytes of large requests that wait for their answers, as pulls may for long."""


class Reader(Doorkeeper):
    """Parses the messages of every call, in place of gRPC."""

    def __init__(self, held_max: int = HELD_MAX) -> None:
        self._held_max = held_max
        self._held = 0
        """Bytes of the large requests whose calls have not ended."""

    def before(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        """A handler of the same kind that takes bytes, and refuses those that are no message."""
        method = details.method
        parse: Parse = handler.request_deserializer  # pyright: ignore[reportAssignmentType]
        read = _each if handler.request_streaming else parsed
        hold = nullcontext if handler.request_streaming else self._holding
        call: Any = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )

        async def answered(request: Any, context: AnyContext) -> Any:
            try:
                with hold(request):
                    return await call(read(parse, method, request), context)
            except (InvalidRequest, Overloaded) as error:
                await refuse(context, error)

        async def streamed(request: Any, context: AnyContext) -> AsyncIterator[Any]:
            try:
                with hold(request):
                    async for answer in call(read(parse, method, request), context):
                        yield answer
            except (InvalidRequest, Overloaded) as error:
                await refuse(context, error)

        streams = inspect.isasyncgenfunction(call)
        return _alike(handler, streamed if streams else answered)

    @contextmanager
    def _holding(self, request: bytes) -> Generator[None]:
        """Count a request that gRPC keeps until its call ends.

        Raises:
            Overloaded: such requests are too many bytes already.
        """
        size = len(request) if len(request) > LARGE else 0
        if size and self._held + size > self._held_max:
            raise Overloaded("The sync service has too many large requests to answer; try later.")
        self._held += size
        try:
            yield
        finally:
            self._held -= size


def _alike(handler: Handler, call: Any) -> Handler:
    """A handler of the same kind around another ``call``, which takes requests as bytes."""
    write: Write = handler.response_serializer  # pyright: ignore[reportAssignmentType]

    def serializer(answer: Any) -> bytes:
        """An answer's bytes; of a chunk they are the answer."""
        return answer if isinstance(answer, bytes) else write(answer)

    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(call, None, serializer)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(call, None, serializer)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(call, None, serializer)
    return grpc.unary_unary_rpc_method_handler(call, None, serializer)


def parsed(parse: Parse, method: str, data: bytes) -> Any:
    """Read one message of a method.

    Raises:
        InvalidRequest: the bytes are none.
    """
    try:
        message = parse(data)
        return _known(message) if len(data) > LARGE else message
    except DecodeError as error:
        log.warning("bytes that are no message", method=method, why=str(error))
        raise InvalidRequest(f"request: {error}; send the method's own message.") from error


async def _each(parse: Parse, method: str, parts: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    has_chunks = method.endswith("/Push")
    async for data in parts:
        yield (has_chunks and read_chunk(data)) or parsed(parse, method, data)


def _known(message: Any) -> Any:
    """The message, or where most of it is of no meaning to us a copy without that."""
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if size - message.ByteSize() <= LARGE:
        return message
    known = type(message)()
    known.CopyFrom(message)
    return known
