"""What comes over the wire must be the method's message, or the call ends in INVALID_ARGUMENT.

gRPC itself would answer UNKNOWN and log a traceback, as if the fault were ours. Stands before
every method of a server, health and reflection too. Of what a large message says it knows only how
much memory that takes: a few bytes on the wire can be an object each.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Any

import structlog
from google.protobuf.message import DecodeError

from syncline_proto.counts import check_boxes, check_counts
from syncline_proto.errors import InvalidRequest, Overloaded
from syncline_proto.parts import read_chunk
from syncline_proto.ranges import check_count
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.doorkeeper import Answers, AnyContext, Handler, Streams, Surrounding, replaced

log = structlog.get_logger()

Parse = Callable[[bytes], Any]
Write = Callable[[Any], bytes]

LARGE = 1 << 16
"""Bytes from which on a request is large, and fields in it that nobody here knows are not kept."""

HELD_MAX = 64 << 20
"""Bytes of large messages that may be held at a time. A request is held until its call ends, which
for a pull may take long. So is a push's header, since as much is kept of its boxes; any other
message of a stream, until the next is asked for.

Each may take four times as much once it is read; one that names too much, more, until it is refused
at once."""

MIDDLING, MIDDLING_MAX = 4 << 10, 256 << 20
"""The same of requests that are not large: bytes from which on one counts, and that may be held.

Ours are of some hundred bytes. A connection may have thousands that wait, of 64 KiB each. One
that is less on the wire counts likewise if what it names is more.
"""

UNDER_WAY_MAX = 65_536
"""Calls that may be under way at a time, whatever they ask for: of all that have the token.

One that waits takes 28 KiB, most of it gRPC's. A rank has one for each fragment that is under way.
"""

THING_BYTES = 40
"""Each box, tensor and fragment that a message names counts as so many bytes, if that is more
than the message has on the wire: a box takes 8 bytes there, and with its lists 157 once it is read.
"""


class _Held:
    """Bytes of requests whose calls have not ended, or these calls."""

    def __init__(self, most: int, what: str = "large requests") -> None:
        self._most, self._what, self._size = most, what, 0

    @contextmanager
    def holding(self, size: int) -> Generator[None]:
        """Count what is kept, be it by gRPC until its call ends, or by who reads it.

        Raises:
            Overloaded: that is too much already.
        """
        if size and self._size + size > self._most:
            raise Overloaded(f"The sync service has too many {self._what} to answer; try later.")
        self._size += size
        try:
            yield
        finally:
            self._size -= size


class Reader(Surrounding):
    """Parses the messages of every call, in place of gRPC."""

    def __init__(
        self,
        held_max: int = HELD_MAX,
        middling_max: int = MIDDLING_MAX,
        under_way_max: int = UNDER_WAY_MAX,
    ) -> None:
        super().__init__()
        self._large, self._middling = _Held(held_max), _Held(middling_max)
        self._calls = _Held(under_way_max, "calls")

    def around(self, handler: Handler, method: str) -> Handler:
        """A handler of the same kind that takes bytes, and refuses those that are no message."""
        parse: Parse = handler.request_deserializer  # pyright: ignore[reportAssignmentType]
        write: Write = handler.response_serializer  # pyright: ignore[reportAssignmentType]
        read = self._many if handler.request_streaming else self._one

        def answered(call: Answers) -> Answers:
            async def answer(request: Any, context: AnyContext) -> Any:
                async with read(parse, method, request) as message:
                    return await call(message, context)

            return answer

        def streamed(call: Streams) -> Streams:
            async def stream(request: Any, context: AnyContext) -> AsyncGenerator[Any]:
                async with (
                    read(parse, method, request) as message,
                    aclosing(call(message, context)) as answers,
                ):
                    async for answer in answers:
                        yield answer

            return stream

        def written(answer: Any) -> bytes:
            """An answer's bytes; of a chunk they are the answer."""
            return answer if isinstance(answer, bytes) else write(answer)

        return replaced(handler, answered, streamed, parse=None, write=written)

    @asynccontextmanager
    async def _one(self, parse: Parse, method: str, data: bytes) -> AsyncGenerator[Any]:
        """A call's only message, held until the call ends: gRPC keeps it as long itself."""
        with self._calls.holding(1), ExitStack() as held:
            yield self._read(parse, method, data, held)

    @asynccontextmanager
    async def _many(
        self, parse: Parse, method: str, parts: AsyncIterator[bytes]
    ) -> AsyncGenerator[AsyncIterator[Any]]:
        """A stream's messages, each held until the next is asked for.

        Of a push the header is held until the call ends, since as much is kept of its boxes. A
        chunk as we write it is within its push's room, and not held at all.
        """
        # gRPC's end of the stream would keep the last message as well, if it were not closed.
        coming: Any = aiter(parts)
        with self._calls.holding(1), ExitStack() as to_the_end, ExitStack() as to_the_next:
            each = self._each(parse, method, coming, to_the_end, to_the_next)
            async with aclosing(coming), aclosing(each):
                yield each

    async def _each(
        self,
        parse: Parse,
        method: str,
        parts: AsyncIterator[bytes],
        to_the_end: ExitStack,
        to_the_next: ExitStack,
    ) -> AsyncGenerator[Any]:
        is_push, held = method.endswith("/Push"), to_the_end
        async for data in parts:
            message = is_push and read_chunk(data)
            if not message:
                message = self._read(parse, method, data, held if is_push else to_the_next)
            held = to_the_next
            read = [message]
            del data, message  # who waits here for the next keeps nothing of this one
            yield read.pop()
            to_the_next.close()

    def _read(self, parse: Parse, method: str, data: bytes, held: ExitStack) -> Any:
        """Read a message, which counts until ``held`` closes.

        It is not read before there is room for its bytes, nor kept where what it names has none.

        Raises:
            InvalidRequest: as ``parsed``.
            Overloaded: such messages are too much already.
        """
        size = len(data)
        such = self._large if size > LARGE else self._middling
        counted = size if size > MIDDLING else 0
        if counted:
            held.enter_context(such.holding(counted))
        message = parsed(parse, method, data)
        more = THING_BYTES * _things(message)
        if more <= max(counted, MIDDLING):
            return message
        try:
            held.enter_context(such.holding(more - counted))
        except Overloaded:
            del message  # as in ``parsed``
            raise
        return message


def parsed(parse: Parse, method: str, data: bytes) -> Any:
    """Read one message of a method.

    Raises:
        InvalidRequest: the bytes are none, or name more than a message may have.
    """
    try:
        message = parse(data)
    except DecodeError as error:
        log.warning("bytes that are no message", method=method, why=str(error))
        raise InvalidRequest(f"request: {error}; send the method's own message.") from error
    if len(data) <= LARGE:
        return message
    why = _too_much(message)
    if why:
        del message  # the error may wait for its reader, and has this frame
        raise InvalidRequest(why)
    return _known(message)


def _too_much(message: Any) -> str:
    """Why a message is not to be kept at all; empty if it may be."""
    try:
        if isinstance(message, pb.OpenRunRequest) and message.HasField("layout"):
            check_counts(message.layout)
        elif isinstance(message, pb.PushRequest):
            check_count(len(message.header.data), "data")
            check_boxes(message.header.boxes)
        elif isinstance(message, pb.PullRequest):
            check_boxes(message.boxes)
    except InvalidRequest as error:
        return error.message
    return ""


def _things(message: Any) -> int:
    """How many boxes, tensors and fragments a message names."""
    if isinstance(message, pb.OpenRunRequest):
        fragments = message.layout.fragments
        named = len(message.layout.tensors) + len(fragments)
        return named + sum(len(fragment.boxes) for fragment in fragments)
    if isinstance(message, pb.PushRequest):
        return len(message.header.boxes)
    return len(message.boxes) if isinstance(message, pb.PullRequest) else 0


def _known(message: Any) -> Any:
    """The message, or where most of it is of no meaning to us a copy without that."""
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if size - message.ByteSize() <= LARGE:
        return message
    known = type(message)()
    known.CopyFrom(message)
    return known
