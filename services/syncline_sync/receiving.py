"""One rank's shard on its way in: read from its call as it comes, and checked, copied and measured.

A chunk of a light codec is so on the loop, before the pool could have been asked: a fifth of a
millisecond for 2 MiB. Of others reading and digesting overlap: the loop takes the next chunk while
the pool has those before it, several at a time when they come fast. What waits in between is within
the push's room: a chunk that cannot be the shard's next, by its length, ends the call before it
waits. Decides nothing; whose push it is and what becomes of it is the servicer's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import grpc

from syncline_proto.codec import chunk_count, codec_of
from syncline_proto.errors import InvalidRequest, Overloaded, Unreachable
from syncline_proto.parts import Chunk
from syncline_proto.status import ROOM_HEADER
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.patience import patience
from syncline_sync.pool import to_the_end
from syncline_sync.run import RunHost
from syncline_sync.shard import Shard
from syncline_sync.shared import Shared
from syncline_sync.staged import Staged
from syncline_sync.staging import Staging

TOGETHER = 2
"""Chunks for which the pool is asked: to ask, and to be told of the end, costs as much as one."""

Part: TypeAlias = pb.PushRequest | Chunk
"""What comes in a push: a message, or the chunk that it would have held."""

PushContext: TypeAlias = grpc.aio.ServicerContext[pb.PushRequest, pb.PushResponse]


class Receiving:
    """A shard of a staged push, and the call that sends it."""

    def __init__(
        self,
        shared: Shared,
        run: RunHost,
        staging: Staging,
        staged: Staged,
        shard: Shard,
        submit: Callable[[Staged], None],
    ) -> None:
        """``submit`` gets the push, if this shard makes it whole."""
        self._shared, self._run, self._staging = shared, run, staging
        self._staged, self._shard, self._submit = staged, shard, submit
        self._left = shard.elements
        """Elements that have not been read."""
        self._waiting: list[Chunk] = []
        """Read, and not yet with the pool."""
        self._digesting: asyncio.Task[None] | None = None

    async def receive(self, parts: AsyncIterator[Part], context: PushContext) -> None:
        """Take the shard's chunks in, once there is room; hand over the push that it makes whole.

        Raises:
            InvalidRequest: the stream is not what its header announced, or its rank began anew.
            Overloaded: its chunks come before there is room for them.
            Unreachable: they stopped coming.
        """
        first = asyncio.ensure_future(anext(parts, None))
        try:
            await _has_room(self._staged.reservation.granted, first)
            if not self._staged.expects(self._shard):
                # This rank is in already: it sends again because it missed the answer.
                if await first is not None:
                    raise Overloaded("push: this rank is in; only its answer is still to come.")
                return
            await _tell_room(context)
            await self._read(first, parts)
            if self._digesting is not None:
                await self._digesting
            await self._digest()
        finally:
            first.cancel()
            if self._digesting is not None:
                self._digesting.cancel()
                if self._digesting.done() and not self._digesting.cancelled():
                    self._digesting.exception()  # whatever it is, it has been heard
            # The stream is closed next, which nothing can be while it is read.
            await asyncio.gather(first, return_exceptions=True)
        if not self._shard.whole:
            raise InvalidRequest(
                f"push: the stream ended after {self._shard.received} of "
                f"{self._shard.elements} elements."
            )
        self._still_expected()
        if self._staging.add(self._staged, self._shard, time.monotonic()):
            self._submit(self._staged)

    async def _read(self, first: asyncio.Future[Part | None], parts: AsyncIterator[Part]) -> None:
        """Hand on the parts that follow the header, as long as they keep coming.

        A push that stands still for ``call_s`` is cut, so that it cannot hold room for ever.
        """
        wait_s = self._run.settings.timeouts.call_s
        try:
            async with patience(wait_s) as its:
                its.begin()
                part = await first
                while part is not None:
                    self._hand_on(part)
                    its.begin()
                    part = await anext(parts, None)
        except TimeoutError:
            if self._digesting is not None and self._digesting.done():
                self._digesting.result()  # what is wrong with a chunk says more
            raise Unreachable(f"push: no chunk came within {wait_s:g} s; send it again.") from None

    def _hand_on(self, part: Part) -> None:
        if isinstance(part, pb.PushRequest):
            if part.WhichOneof("part") != "chunk":
                raise InvalidRequest("push: after the header only chunks may follow.")
            part = Chunk(part.chunk.data, part.chunk.crc32c)
        self._shared.lull.moved()
        self._left -= chunk_count(part, self._shard.header.codec, self._left)
        self._staging.note(self._staged, self._shard, time.monotonic())
        if codec_of(self._shard.header.codec).is_light:
            self._shard.take([part])
            self._run.metrics.moved("up", len(part.data))
            return
        self._waiting.append(part)
        if len(self._waiting) < TOGETHER and self._left > 0:
            return
        if self._digesting is None:
            self._digesting = asyncio.create_task(self._digest())
        elif self._digesting.done():
            self._digesting.result()
            self._digesting = asyncio.create_task(self._digest())

    async def _digest(self) -> None:
        """Let the pool have what has been read, until there is nothing left."""
        while self._waiting:
            chunks, self._waiting = self._waiting, []
            await self._shared.compute(self._shard.take, chunks)
            self._still_expected()
            # How long we take is not its doing.
            self._staging.note(self._staged, self._shard, time.monotonic())
            self._run.metrics.moved("up", sum(len(chunk.data) for chunk in chunks))

    def _still_expected(self) -> None:
        """See that no other call has taken this one's place, to be asked after each wait.

        Raises:
            InvalidRequest: one has.
        """
        if not self._staged.expects(self._shard):
            raise begun_anew()


def begun_anew() -> InvalidRequest:
    """What a call is told when another has taken its place."""
    return InvalidRequest("rank: this rank has begun to send the same push again.")


async def _tell_room(context: PushContext) -> None:
    """Tell the client that its chunks may come; who is cancelled ends only once that is said.

    gRPC takes no status while it sends this: a call that ends meanwhile would never be answered.
    """
    saying = context.send_initial_metadata(((ROOM_HEADER, "granted"),))
    await to_the_end(asyncio.ensure_future(saying))


async def _has_room(granted: asyncio.Future[None], first: asyncio.Future[Part | None]) -> None:
    """Wait for a push's room; ``first`` is what follows its header.

    gRPC takes in as much of a stream as the line holds, read or not. So who waits must not send.

    Raises:
        Overloaded: it does.
    """
    await asyncio.wait({granted, first}, return_when=asyncio.FIRST_COMPLETED)
    if not granted.done() and first.result() is not None:
        raise Overloaded("push: there is no room yet; send chunks once the call's metadata is in.")
    await asyncio.shield(granted)
