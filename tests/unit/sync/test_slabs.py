"""Memory that is used again: bounded, given back, never two pushes' at once."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from syncline_proto.codec import CHUNK_BYTES_MAX, CODECS, Codec, Float32, chunks, encode, published
from syncline_proto.errors import InvalidRequest
from syncline_proto.layout import Box
from syncline_proto.parts import Chunk
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget
from syncline_sync.core import merge
from syncline_sync.core.record import Judgement
from syncline_sync.places import Places
from syncline_sync.shard import Shard, shard_of
from syncline_sync.slabs import SLAB_BYTES, Slabs
from syncline_sync.staged import Staged
from syncline_sync.staging import Staging
from syncline_testing.service import flat_layout
from syncline_testing.staging import header

SIZE = 3 * SLAB_BYTES // 4 + 12_345
"""Elements that fill three slabs in fp32, and some more."""
LAYOUT = flat_layout(SIZE)
ACCEPTED = Judgement(verdict=pb.VERDICT_ACCEPTED, result=1)


def values_of(seed: int) -> Float32:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


def shard(slabs: Slabs, seq: int = 1, codec: pb.Codec.ValueType = pb.CODEC_FP32) -> Shard:
    boxes = [Box(0, (0,), (SIZE,)).to_proto()]
    return shard_of(Places(LAYOUT), header(seq=seq, codec=codec, boxes=boxes), slabs)


def filled(slabs: Slabs, values: Float32, **given: Any) -> Shard:
    made = shard(slabs, **given)
    codec = made.header.codec
    made.take(chunks(encode(values, codec), codec))
    return made


def staged(staging: Staging, made: Shard) -> Staged:
    push = staging.join(made)
    staging.add(push, made, now_s=0.0)
    return push


def folded(made: Shard) -> Float32:
    found = np.full(SIZE, np.nan, np.float32)
    merge.fold(found, [made.payload()], 1.0, is_first=True)
    return found


def test_no_more_is_kept_than_the_bound() -> None:
    slabs = Slabs(3 * SLAB_BYTES + 1)
    slabs.give_back([slabs.take() for _ in range(2)])
    assert slabs.idle == 2 * SLAB_BYTES
    slabs.give_back([np.empty(SLAB_BYTES, np.uint8) for _ in range(5)])
    assert slabs.idle == 3 * SLAB_BYTES
    taken = [slabs.take() for _ in range(4)]
    assert slabs.idle == 0
    assert len({slab.ctypes.data for slab in taken}) == 4


def test_what_is_nobodys_may_be_idle_until_somebody_has_it() -> None:
    """Beside the bound: so that all a round has had at once is there for the next."""
    room = 5 * SLAB_BYTES
    slabs = Slabs(2 * SLAB_BYTES, lambda: room)
    slabs.give_back([slabs.take() for _ in range(7)])
    assert slabs.idle == room
    room = 3 * SLAB_BYTES
    assert slabs.less(7).size == 7
    assert slabs.idle == room
    room = -SLAB_BYTES
    slabs.give_back([slabs.take()])
    assert slabs.idle == 2 * SLAB_BYTES


def test_what_nobody_takes_between_two_trims_goes() -> None:
    slabs = Slabs()
    slabs.give_back([slabs.take() for _ in range(5)])
    slabs.trim()
    assert slabs.idle == 5 * SLAB_BYTES  # it has only just come
    slabs.give_back([slabs.take(), slabs.take()])
    slabs.trim()
    assert slabs.idle == 2 * SLAB_BYTES
    slabs.trim()
    assert slabs.idle == 0


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("grains", [(1024,), (1, 700, 3)], ids=str)
def test_a_payload_in_slabs_is_the_payload(codec: Codec, grains: tuple[int, ...]) -> None:
    """Chunks of any size, so that slabs end within them; in memory that held another push."""
    slabs, values = Slabs(), values_of(1)
    filled(slabs, values_of(2)).free()
    made = shard(slabs, codec=codec.number)
    payload = bytes(encode(values, codec.number))
    cuts = [0]
    while cuts[-1] < SIZE:
        step = grains[len(cuts) % len(grains)] * codec.grain
        # At most a chunk, and of blocks that are whole.
        step = min(step, CHUNK_BYTES_MAX // codec.size(codec.grain) * codec.grain)
        cuts.append(min(cuts[-1] + step, SIZE))
    for start, end in pairwise(map(codec.size, cuts)):
        made.take(chunks(memoryview(payload)[start:end], codec.number))
    assert made.whole
    assert b"".join(made.payload().parts) == payload
    assert np.array_equal(folded(made), published(values, codec.number))


def test_a_settled_push_leaves_its_slabs_to_the_next() -> None:
    async def scenario() -> None:
        slabs, staging = Slabs(), Staging("run", LAYOUT, Budget(1 << 30))
        for seq in (1, 2):
            values = values_of(seq)
            made = filled(slabs, values, seq=seq)
            push = staged(staging, made)
            assert slabs.idle == 0
            assert np.array_equal(folded(made), values)
            staging.settle(push, ACCEPTED)
            assert slabs.idle == 3 * SLAB_BYTES

    asyncio.run(scenario())


def test_a_push_that_is_cut_off_leaves_none() -> None:
    """A thread may still be writing into them."""

    async def scenario() -> None:
        slabs, staging = Slabs(), Staging("run", LAYOUT, Budget(1 << 30))
        fenced = filled(slabs, values_of(1))
        staging.settle(staging.join(fenced), Judgement(verdict=pb.VERDICT_FENCED, result=0))
        dropped = filled(slabs, values_of(2), seq=2)
        staging.drop(staged(staging, dropped), InvalidRequest("boxes: overlap."))
        gone = filled(slabs, values_of(3), seq=3)
        staging.leave(staging.join(gone), gone)
        assert slabs.idle == 0
        late = values_of(4)
        fresh = filled(slabs, late, seq=4)
        for other in (fenced, dropped, gone):
            for slab in other.kept:
                slab[:] = 255
        assert np.array_equal(folded(fresh), late)

    asyncio.run(scenario())


def test_a_damaged_chunk_is_not_kept() -> None:
    made = shard(Slabs())
    with pytest.raises(InvalidRequest, match="crc32c"):
        made.take([Chunk(bytes(4096), 1)])
    assert (made.received, made.square_sum) == (0, 0.0)
