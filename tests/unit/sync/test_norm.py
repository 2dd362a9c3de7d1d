"""The norm that a push is judged by: the whole fragment's, however ranks and chunks cut it."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline_proto.codec import CODECS, Float32, codec_of, crc32c, encode, published
from syncline_proto.codec.base import PIECE
from syncline_proto.layout import Box
from syncline_proto.parts import Chunk
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget
from syncline_sync.places import Places
from syncline_sync.shard import Shard, shard_of
from syncline_sync.slabs import Slabs
from syncline_sync.staged import Staged
from syncline_sync.staging import Staging
from syncline_testing.service import flat_layout

SIZE = 4 * PIECE + 3 * 4096 + 5
NUMBERS = st.sampled_from([codec.number for codec in CODECS])
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
EXTREMES = st.sampled_from([0.0, -0.0, SMALLEST, -1e-40, 1e-30, 1.0, -1e19, 1e19, 3.3e38])

seeds = st.integers(0, 2**32 - 1)
edges = st.lists(st.integers(0, SIZE), max_size=3).map(sorted)
"""Where one rank's shard ends and the next begins; equal ones make a rank without any."""


def chunked(payload: memoryview, codec: pb.Codec.ValueType, grains: list[int]) -> list[Chunk]:
    """Cut at the grain: as many grains as listed, over and over, and whatever is left."""
    found: list[Chunk] = []
    at = 0
    while at < len(payload):
        size = codec_of(codec).size(grains[len(found) % len(grains)] * codec_of(codec).grain)
        data = bytes(payload[at : at + size])
        found.append(Chunk(data, crc32c(data)))
        at += size
    return found


def staged_norm(
    values: Float32,
    codec: pb.Codec.ValueType,
    cuts: list[int],
    grains: list[int],
    arrival: list[int],
) -> float:
    """Send ``values`` through the staging as ranks cut at ``cuts``, a chunk each in turn."""

    async def scenario() -> float:
        layout = flat_layout(SIZE)
        staging = Staging("run", layout, Budget(1 << 30))
        spans = list(pairwise((0, *cuts, SIZE)))
        order = [rank for rank in arrival if rank < len(spans)]
        shards: dict[int, Shard] = {}
        for rank in order:
            a, b = spans[rank]
            boxes = [Box(0, (a,), (b - a,)).to_proto()] if b > a else []
            shards[rank] = shard_of(
                Places(layout),
                pb.PushHeader(
                    run="run", epoch=1, replica="a", incarnation=1, seq=1, base_revision=0,
                    rank=rank, ranks=len(spans), codec=codec, boxes=boxes, inner_steps=1,
                    kind=pb.PUSH_KIND_PSEUDO_GRADIENT,
                ),
                Slabs(),
            )  # fmt: skip
        joined: list[Staged] = [staging.join(shard) for shard in shards.values()]
        payloads = {rank: encode(values[slice(*spans[rank])], codec) for rank in order}
        waiting = {rank: chunked(payloads[rank], codec, grains) for rank in order}
        while any(waiting.values()):
            for rank in order:
                if waiting[rank]:
                    shards[rank].take([waiting[rank].pop(0)])
        whole = [staging.add(joined[0], shards[rank], now_s=0.0) for rank in order]
        assert whole == [False] * (len(order) - 1) + [True]
        return joined[0].norm

    return asyncio.run(scenario())


def exactly(values: Float32, codec: pb.Codec.ValueType, cuts: list[int]) -> float:
    """||D|| of what the ranks' shards decode to, summed without rounding."""
    shards = [published(shard, codec) for shard in np.split(values, cuts)]
    decoded = np.concatenate(shards).astype(np.float64)
    return math.sqrt(math.fsum((decoded * decoded).tolist()))


@given(
    seeds,
    st.floats(-38.0, 19.0),
    st.dictionaries(st.integers(0, SIZE - 1), EXTREMES, max_size=6),
    NUMBERS,
    edges,
    st.lists(st.sampled_from([1, 17, 64, 65, 128]), min_size=1, max_size=3),
    st.permutations(range(4)),
)
@settings(max_examples=60, deadline=None)
def test_the_norm_of_shards_is_the_norm_of_the_whole(
    seed: int,
    exponent: float,
    extremes: dict[int, float],
    codec: pb.Codec.ValueType,
    cuts: list[int],
    grains: list[int],
    arrival: list[int],
) -> None:
    """Values of any size that fp32 can hold: as it is summed, nothing overflows or vanishes."""
    scale = np.float32(10.0**exponent)
    values = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32) * scale
    for at, value in extremes.items():
        values[at] = value
    norm = staged_norm(values, codec, cuts, grains, arrival)
    expected = exactly(values, codec, cuts)
    assert math.isfinite(expected)
    assert norm == pytest.approx(expected, rel=1e-6, abs=0.0)


@given(
    st.dictionaries(
        st.integers(0, SIZE - 1),
        st.sampled_from([math.nan, math.inf, -math.inf]),
        min_size=1,
        max_size=4,
    ),
    NUMBERS,
    edges,
    st.permutations(range(4)),
)
@settings(max_examples=40, deadline=None)
def test_one_value_that_is_not_finite_shows_in_the_norm_wherever_it_lies(
    poison: dict[int, float], codec: pb.Codec.ValueType, cuts: list[int], arrival: list[int]
) -> None:
    values = np.ones(SIZE, np.float32)
    for at, value in poison.items():
        values[at] = value
    norm = staged_norm(values, codec, cuts, [64], arrival)
    assert not math.isfinite(norm)
    plain = codec in (pb.CODEC_FP32, pb.CODEC_BF16)  # in others it spreads over its block
    if not plain or any(math.isnan(value) for value in poison.values()):
        assert math.isnan(norm)
    else:
        assert norm == math.inf


@given(
    seeds,
    NUMBERS,
    st.lists(st.integers(1, SIZE - 1), min_size=3, max_size=3, unique=True).map(sorted),
    st.permutations(range(4)),
)
@settings(max_examples=40, deadline=None)
def test_the_order_in_which_ranks_arrive_does_not_move_the_norm_by_a_bit(
    seed: int, codec: pb.Codec.ValueType, cuts: list[int], arrival: list[int]
) -> None:
    values = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)
    in_order = staged_norm(values, codec, cuts, [64], list(range(4)))
    assert staged_norm(values, codec, cuts, [64], arrival) == in_order
