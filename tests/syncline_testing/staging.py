"""Pushes for a staging, header by header and shard by shard, without a service around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from syncline_proto.codec import chunks, encode
from syncline_proto.layout import Box
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget
from syncline_sync.places import Places
from syncline_sync.shard import Shard, shard_of
from syncline_sync.slabs import Slabs
from syncline_sync.staged import Staged
from syncline_sync.staging import Staging
from syncline_testing.service import flat_layout

SIZE = 12
BYTES = 4 * SIZE
LAYOUT = flat_layout(SIZE, fragments=2)


def header(replica: str = "a", **given: Any) -> pb.PushHeader:
    usual: dict[str, Any] = {
        "run": "run",
        "epoch": 1,
        "incarnation": 1,
        "seq": 1,
        "ranks": 1,
        "kind": pb.PUSH_KIND_PSEUDO_GRADIENT,
        "base_revision": 0,
        "codec": pb.CODEC_FP32,
        "inner_steps": 1,
        "boxes": [Box(given.get("fragment", 0), (0,), (SIZE,)).to_proto()],
    }
    return pb.PushHeader(replica=replica, **usual | given)


def half(rank: int, replica: str = "a", **given: Any) -> pb.PushHeader:
    """One of two ranks: rank 0 has the first third, rank 1 the rest."""
    start, size = ((0, 4), (4, 8))[rank]
    boxes = [Box(given.get("fragment", 0), (start,), (size,)).to_proto()]
    return header(replica, **{"rank": rank, "ranks": 2, "boxes": boxes, **given})


def fill(shard: Shard, value: float = 1.0) -> None:
    values = np.full(shard.elements, value, np.float32)
    shard.take(chunks(encode(values, pb.CODEC_FP32), pb.CODEC_FP32))


def run(scenario: Callable[[Staging, Budget], Awaitable[None]], limit: int = 10 * BYTES) -> None:
    async def main() -> None:
        budget = Budget(limit)
        await scenario(Staging("run", LAYOUT, budget), budget)

    asyncio.run(main())


def joined(staging: Staging, given_header: pb.PushHeader) -> tuple[Staged, Shard]:
    shard = shard_of(Places(LAYOUT), given_header, Slabs())
    return staging.join(shard), shard


def sent(staging: Staging, given_header: pb.PushHeader) -> tuple[Staged, bool]:
    """Join, send everything; and whether that made the push whole."""
    staged, shard = joined(staging, given_header)
    assert staged.expects(shard)
    fill(shard)
    return staged, staging.add(staged, shard, now_s=0.0)
