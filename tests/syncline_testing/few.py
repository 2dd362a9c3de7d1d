"""Few pushes of a round, and a fragment's arrays that are stepped by them, either way."""

from __future__ import annotations

import math

import numpy as np

from syncline_proto.codec import Float32, UInt16, codec_of, encode, publish, square_sum
from syncline_proto.merging import OuterSettings
from syncline_proto.spans import Extent
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import few, merge
from syncline_sync.core.squares import SQUARES_PIECE as PIECE
from syncline_sync.core.window import Carry
from syncline_testing.held import values

BLOCK = 256
LONG = 2 * PIECE + 3 * BLOCK + 77


def payload(given: Float32, start: int, codec: pb.Codec.ValueType, *cuts: int) -> merge.Payload:
    """A shard of one span, in parts that end at these elements of it."""
    data, size = bytes(encode(given, codec)), codec_of(codec).size
    edges = [0, *map(size, cuts), len(data)]
    parts = tuple(data[a:b] for a, b in zip(edges, edges[1:], strict=False))
    return merge.Payload(codec, parts, Extent.of(np.array([[start, given.size]], np.int64)))


def push(
    given: Float32,
    weight: float = 1.0,
    rescale: float = 1.0,
    *,
    codec: pb.Codec.ValueType = pb.CODEC_INT8,
    ranks: tuple[int, ...] = (),
    cuts: tuple[int, ...] = (),
    is_known: bool = True,
) -> merge.Weighed:
    """Of ranks that end at these elements; the first one's payload is in parts.

    ``is_known``: its norm is, as of what has come in. That of a short sum is to be.
    """
    edges = [0, *ranks, given.size]
    spans = list(zip(edges, edges[1:], strict=False))
    shards = [payload(given[a:b], a, codec, *(() if a else cuts)) for a, b in spans]
    norm = math.sqrt(sum(square_sum(one) for _, one in merge.decoded(shards)))
    return merge.Weighed(shards, weight, rescale, norm if is_known else math.inf)


def weighed(seed: int, weight: float) -> merge.Weighed:
    """A push of values of a ``held.Fragment``, rescaled by a half."""
    return push(values(seed), weight, 0.5)


def vector(seed: int, numel: int = LONG, scale: float = 1.0) -> Float32:
    return (scale * np.random.default_rng(seed).standard_normal(numel)).astype(np.float32)


class Here:
    """A fragment's arrays, and a round of few pushes on them, summed or unfolded."""

    def __init__(self, numel: int, published: Float32 | None = None) -> None:
        self.parameters, self.momentum = vector(1, numel), vector(2, numel, 0.1)
        self.out = np.full(numel, np.nan, np.float32)
        self.published: UInt16 = np.empty(numel, np.uint16)
        publish(self.published, self.parameters if published is None else published)
        self.unread: memoryview | None = None

    def stepped(
        self,
        pushes: list[merge.Weighed],
        outer: OuterSettings,
        carry: Carry | None,
        *,
        unfolded: bool,
    ) -> merge.Outcome:
        arrays = self.parameters, self.momentum, self.out
        if unfolded:
            found = few.few_of(pushes)
            assert found is not None
            return few.outer_step(found, *arrays, 1.7, outer, carry)
        squares = merge.begin(self.out, pushes)
        return merge.outer_step(*arrays, 1.7, outer, carry, squares)

    def advanced(
        self,
        pushes: list[merge.Weighed],
        outer: OuterSettings,
        carry: Carry | None,
        *,
        unfolded: bool,
    ) -> tuple[merge.Outcome, bytes | None]:
        more = 1.7, outer, self.published, self.unread, carry
        if unfolded:
            found = few.few_of(pushes)
            assert found is not None
            outcome, told = few.step_and_advance(found, self.parameters, self.momentum, *more)
            self.out[:] = self.parameters
        else:
            arrays = self.parameters, self.momentum, self.out
            squares = merge.begin(self.out, pushes)
            outcome, told = merge.step_and_advance(*arrays, *more, squares)
        self.unread = told
        return outcome, None if told is None else bytes(told)

    def bits(self) -> list[bytes]:
        return [self.momentum.tobytes(), self.published.tobytes()]
