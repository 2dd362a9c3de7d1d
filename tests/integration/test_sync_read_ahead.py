"""What gRPC takes in of a push before it is asked for: a bound, however fast the line has been."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from syncline_sync.serving import AHEAD_MAX, AHEAD_SHARE, CHANNEL_OPTIONS, read_ahead

CHUNK = bytes(1 << 20)
WARM, STILL_S = 200, 1.0
STAYS, ENDS = b"stays", b"ends"


@asynccontextmanager
async def server(staging_bytes: int) -> AsyncIterator[int]:
    """The port of one that reads a stream, if that does not begin with the word to let it lie."""

    async def push(messages: AsyncIterator[bytes], _: Any) -> bytes:
        async for message in messages:
            if message == STAYS:
                await asyncio.Event().wait()
        return b""

    options = (*CHANNEL_OPTIONS, *read_ahead(staging_bytes))
    bare = grpc.aio.server(options=options)
    method = grpc.stream_unary_rpc_method_handler(push)
    bare.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bare", {"Push": method}),))
    port = bare.add_insecure_port("127.0.0.1:0")
    await bare.start()
    yield port
    await bare.stop(None)


@pytest.mark.parametrize(
    ("staging_bytes", "ahead"), [(2 << 30, AHEAD_MAX), (16 << 20, 1 << 20), (1 << 20, 64 << 10)]
)
def test_of_a_call_that_nobody_reads_no_more_is_taken_in_than_the_bound(
    staging_bytes: int, ahead: int
) -> None:
    assert ahead == min(AHEAD_MAX, staging_bytes * AHEAD_SHARE)
    # The window may be renewed before it is read out; one more may lie half in it, one on its way.
    assert asyncio.run(taken_in(staging_bytes)) <= 2 * ahead + 2 * len(CHUNK)


async def taken_in(staging_bytes: int) -> int:
    """Bytes that a client gets rid of in a call that is not read, after one that was."""
    taken = 0

    def messages(first: bytes, count: int) -> Iterator[bytes]:
        nonlocal taken
        yield first
        for _ in range(count):
            yield CHUNK
            taken += len(CHUNK)

    async with (
        server(staging_bytes) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        push = channel.stream_unary("/Bare/Push")
        await push(messages(ENDS, WARM))  # gRPC has seen by now what the line can move
        call, taken, before = push(messages(STAYS, WARM)), 0, -1
        while taken != before:
            before = taken
            await asyncio.sleep(STILL_S)
        call.cancel()
    return taken
