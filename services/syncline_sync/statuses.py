"""How a call ends that does not answer: its error becomes a gRPC status, and a fault stops us.

The only place where errors meet statuses. A SynclineError goes out with its code; a disk that
refuses stops the process as well. Anything else, in health and reflection too, is a fault: the call
ends INTERNAL, and the process is asked to stop.

An error has the frames that it came through, and they may have a request of megabytes: its frames
are taken from it before its status waits for a reader, and before gRPC keeps what has been raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, NoReturn

import grpc

from syncline_proto.errors import StoreDamaged, StoreError, SynclineError, bare
from syncline_proto.status import CODE_TRAILER, NEWEST_TRAILER, status_of
from syncline_sync.doorkeeper import Answers, AnyContext, Handler, Streams, Surrounding, replaced
from syncline_sync.shelf import NewestNamed

SAID_BYTES_MAX = 2 << 10
"""Bytes of a sentence, as UTF-8; the rest is cut off, since gRPC may send nothing of one that is
longer."""


class Statuses(Surrounding):
    """Ends the calls of a server; ``fail`` is told what must stop the process."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._fail = fail

    def around(self, handler: Handler, method: str) -> Handler:
        """A handler whose errors end the call with their status."""
        return replaced(
            handler,
            self._answered,
            self._streamed,
            parse=handler.request_deserializer,  # pyright: ignore[reportArgumentType]
            write=handler.response_serializer,  # pyright: ignore[reportArgumentType]
        )

    def _answered(self, call: Answers) -> Answers:
        async def answer(request: Any, context: AnyContext) -> Any:
            with _Caught(self._fail) as caught:
                return await call(request, context)
            del request
            await caught.tell(context)

        return answer

    def _streamed(self, call: Streams) -> Streams:
        async def stream(request: Any, context: AnyContext) -> AsyncGenerator[Any]:
            with _Caught(self._fail) as caught:
                async with aclosing(call(request, context)) as answers:
                    async for answer in answers:
                        yield answer
                return
            del request
            await caught.tell(context)

        return stream


class _Caught:
    """Takes the error of its block, and tells of it after that; a call that is cut goes as it is.

    Nothing is raised here that a local name still holds: its traceback would have our frame, and
    our frame it, so both would stay until the garbage collector comes.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._told: Exception | None = None

    def __enter__(self) -> _Caught:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, frames: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        if isinstance(error, grpc.aio.InternalError):
            raise asyncio.CancelledError from None  # gRPC's own: the client went while we wrote
        is_ours = isinstance(error, SynclineError | grpc.aio.AbortError)
        is_stores = isinstance(error, StoreError) and not isinstance(error, StoreDamaged)
        if is_stores or not is_ours:
            self._fail(error)  # and that is told with its frames
            self._told = error
        else:
            self._told = bare(error)
        return True

    async def tell(self, context: AnyContext) -> None:
        """End the call with the status of the block's error, if it has not ended it itself."""
        if isinstance(self._told, grpc.aio.AbortError):
            return
        try:
            if isinstance(self._told, SynclineError):
                await tell(context, self._told)
            await _abort(context, grpc.StatusCode.INTERNAL, "The sync service failed; see its log.")
        except grpc.aio.AbortError as raised:
            # gRPC keeps it with the call, and its frames have the call: a ring, and megabytes in
            # it, until the garbage collector comes. So it goes no further; gRPC raises it anew.
            bare(raised)


async def tell(context: AnyContext, error: SynclineError) -> NoReturn:
    """End a call with the error's status, code and sentence; that waits for its reader.

    Raises:
        AbortError: the call is over, as gRPC has it.
        CancelledError: it was over before: its caller has gone.
    """
    trailer = [(CODE_TRAILER, error.code)]
    if isinstance(error, NewestNamed):
        trailer.append((NEWEST_TRAILER, str(error.newest)))
    context.set_trailing_metadata(tuple(trailer))
    # gRPC takes 8 KiB of metadata for sure, and one byte may be three there.
    said = error.message.encode()[:SAID_BYTES_MAX].decode(errors="ignore")
    await _abort(context, status_of(error), said)


async def _abort(context: AnyContext, status: grpc.StatusCode, message: str) -> NoReturn:
    try:
        await context.abort(status, message)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None
