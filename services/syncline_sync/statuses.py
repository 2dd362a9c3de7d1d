"""How a call ends that does not answer: its error becomes a gRPC status, and a fault stops us.

The only place where errors meet statuses. A SynclineError goes out with its code; a disk that
refuses stops the process as well. Anything else is a fault of ours: the call ends INTERNAL, and the
process is asked to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc

from syncline_proto.errors import StoreDamaged, StoreError, SynclineError
from syncline_proto.status import CODE_TRAILER, NEWEST_TRAILER, status_of
from syncline_sync.published import NewestNamed

AnyContext: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class Statuses:
    """The statuses of one servicer's calls; ``fail`` is told what must stop the process."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail

    @asynccontextmanager
    async def of(self, context: AnyContext) -> AsyncGenerator[None]:
        """An error of the block ends the call with its status."""
        try:
            yield
        except BaseException as error:
            await self.abort(context, error)
            raise

    async def abort(self, context: AnyContext, error: BaseException) -> None:
        """End the call with the error's status.

        Returns if there is nothing to tell: the call was cancelled, or has been ended already.
        """
        if isinstance(error, grpc.aio.InternalError):
            raise asyncio.CancelledError from None  # gRPC's own: the client went while we wrote
        if isinstance(error, StoreError) and not isinstance(error, StoreDamaged):
            self._fail(error)
        if isinstance(error, SynclineError):
            await refuse(context, error)
        if isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError):
            self._fail(error)
            await _told(context, grpc.StatusCode.INTERNAL, "The sync service failed; see its log.")


async def refuse(context: AnyContext, error: SynclineError) -> None:
    """End a call with the error's status, code and sentence."""
    trailer = [(CODE_TRAILER, error.code)]
    if isinstance(error, NewestNamed):
        trailer.append((NEWEST_TRAILER, str(error.newest)))
    context.set_trailing_metadata(tuple(trailer))
    await _told(context, status_of(error), error.message)


async def _told(context: AnyContext, status: grpc.StatusCode, message: str) -> None:
    """End a call with a status; a caller that goes meanwhile is nobody's fault."""
    try:
        await context.abort(status, message)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None
