"""The calls of a correct client, and which of them it makes again. Knows nothing of rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc

from syncline_proto.codec import codec_of, crc32c
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.service import code_of

CHUNK_GRAINS = 16
"""A push is many chunks, so that a kill finds it half-way."""
AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
"""How a call ends that is made again; see docs/protocol.md, section 10."""

BROKEN = "Internal error from Core"
"""What grpc.aio calls it when the connection goes while a message is being sent."""

CHANNEL = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
    ("grpc.use_local_subchannel_pool", 1),
)


def may_be_repeated(error: grpc.aio.AioRpcError) -> bool:
    """Whether a call failed in a way that a correct client meets."""
    return error.code() in AGAIN or error.details() == BROKEN


async def pulled(
    stub: Any, request: pb.PullRequest, timeout_s: float
) -> tuple[pb.PullHeader, list[bytes]]:
    """The header and the chunks of a pull; of the newest revision, where the wanted one is gone."""
    header, chunks = None, list[bytes]()
    try:
        async for part in stub.Pull(request, timeout=timeout_s):
            if header is None:
                header = part.header
            else:
                assert crc32c(part.chunk.data) == part.chunk.crc32c
                chunks.append(part.chunk.data)
    except grpc.aio.AioRpcError as error:
        if code_of(error) != "REVISION_GONE":
            raise
        request.newest = True
        return await pulled(stub, request, timeout_s)
    assert header is not None
    return header, chunks


def parts_of(header: pb.PushHeader, payload: bytes) -> Iterator[pb.PushRequest]:
    """The messages of one rank's push, in small chunks."""
    yield pb.PushRequest(header=header)
    codec = codec_of(header.codec)
    step = codec.size(CHUNK_GRAINS * codec.grain)
    for at in range(0, len(payload), step):
        data = payload[at : at + step]
        yield pb.PushRequest(chunk=pb.Chunk(data=data, crc32c=crc32c(data)))
