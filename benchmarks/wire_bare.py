"""The yardstick of `wire.py`: a gRPC server that throws away what it gets, and sends what it has.

Prints its port, and serves until it is killed. What it sends is written once and kept, a message
for each place in the stream, as who pushes keeps its messages: one buffer for all, or one that was
never written, would lie in the processor's cache, where no parameters ever lie.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Any

import grpc

OPTIONS = (
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.max_send_message_length", 8 << 20),
)


async def push(messages: AsyncIterator[bytes], _: Any) -> bytes:
    """Take everything."""
    async for _message in messages:
        pass
    return b""


async def pull(sizes: bytes, context: Any) -> None:
    """Send messages of these sizes, in words."""
    for message in messages(sizes):
        await context.write(message)


@lru_cache(maxsize=2)
def messages(sizes: bytes) -> list[bytes]:
    return [os.urandom(size) for size in map(int, sizes.split())]


async def main() -> None:
    server = grpc.aio.server(options=OPTIONS)
    methods = {
        "Push": grpc.stream_unary_rpc_method_handler(push),
        "Pull": grpc.unary_stream_rpc_method_handler(pull),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bare", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
