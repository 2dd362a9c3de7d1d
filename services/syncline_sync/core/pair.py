"""Two pushes in int8 that are all of a round, stepped as they came: their sum never is in memory.

A sum of two is written once and read twice, for its norm and for the step, at 4 bytes an element;
the two as they came are half of that. So they are gone through block by block for the step, which
takes the norm as well. Only where the sum may be long enough to be clipped is its norm wanted
first: they are gone through once more for that, in pieces that stay in the processor's cache. What
becomes of parameters is, bit for bit, what ``merge.begin`` and ``merge.outer_step`` make of the
same pushes; the norm is the same but for the order of additions in fp64. Pure, and nothing else:
whose push counts is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from syncline_proto.codec import (
    Bytes,
    Float32,
    UInt8,
    UInt16,
    advance,
    advance_by,
    codec_of,
)
from syncline_proto.codec.base import Float64
from syncline_proto.codec.int8_loops import BLOCK
from syncline_proto.merging import OuterSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import loops
from syncline_sync.core.detector import is_finite
from syncline_sync.core.merge import (
    CLIP_EPSILON,
    Outcome,
    Part,
    Payload,
    Weighed,
    are_cut_alike,
    numbers_of,
    outcome_of,
    parts_of,
)
from syncline_sync.core.squares import PIECE, Squares
from syncline_sync.core.window import Carry

_INT8 = codec_of(pb.CODEC_INT8)

_ROUNDING = 1e-5
"""More than the norm of a sum in fp32 can be over the one in real numbers, as a part of it."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two pushes that ``pair_of`` has found to lie block for block as the fragment does."""

    first: Weighed
    second: Weighed

    @property
    def factors(self) -> Float32:
        """As ``Codec.scale_both`` takes them, fp32 [3]."""
        numbers = self.first.weight, self.second.rescale, self.second.weight
        return np.array(numbers, np.float32)

    def parts(self) -> Iterator[tuple[Part, Bytes]]:
        """From the fragment's first element on: the first push's parts, and the other's data."""
        pairs = zip(parts_of(self.first.payloads), parts_of(self.second.payloads), strict=True)
        return ((part, beside.data) for part, beside in pairs)


def pair_of(pushes: Sequence[Weighed]) -> Pair | None:
    """The pushes of a whole round as a pair; None where their sum is needed.

    That is where they are not two, or not both in int8 and cut alike, or where a shard's blocks are
    not those of the fragment's flat vector, from its first element on.
    """
    if len(pushes) != 2:
        return None
    first, second = pushes
    fits = are_cut_alike(first.payloads, second.payloads) and _is_in_blocks(first.payloads)
    return Pair(first, second) if fits else None


def outer_step(
    pair: Pair,
    parameters: Float32,
    momentum: Float32,
    out: Float32,
    total_weight: float,
    settings: OuterSettings,
    carry: Carry | None = None,
) -> Outcome:
    """``merge.outer_step`` with the pair's sum; the new parameters are left in ``out``.

    All are fp32 [numel]. ``out`` is undefined where D is not finite.
    """
    outcome, squares = _before(pair, total_weight, settings), np.zeros(BLOCK)
    if outcome.clip:
        numbers, factors = numbers_of(outcome, total_weight, settings, carry), pair.factors
        for part, other in pair.parts():
            here = slice(part.at, part.at + part.elements)
            loops.step_both(
                _bytes(part.data),
                _bytes(other),
                factors,
                parameters[here],
                momentum[here],
                out[here],
                *numbers,
                squares,
            )
        outcome = _after(outcome, squares, total_weight)
    return outcome


def step_and_advance(
    pair: Pair,
    parameters: Float32,
    momentum: Float32,
    total_weight: float,
    settings: OuterSettings,
    published: UInt16,
    unread: memoryview | None = None,
    carry: Carry | None = None,
) -> tuple[Outcome, memoryview | None]:
    """``merge.step_and_advance`` with the pair's sum, but in place: ``parameters`` are changed.

    What is published follows from ``published``, so nobody reads them meanwhile.
    """
    outcome, squares = _before(pair, total_weight, settings), np.zeros(BLOCK)
    if not outcome.clip:
        return outcome, advance(published, parameters, unread)
    numbers, factors = numbers_of(outcome, total_weight, settings, carry), pair.factors

    def write(told: UInt8) -> bool:
        is_fine = True
        for part, other in pair.parts():
            here = slice(part.at, part.at + part.elements)
            its = slice(_INT8.size(part.at), _INT8.size(part.at + part.elements))
            # What follows is stepped all the same where a difference cannot tell of this.
            is_fine &= loops.step_both_and_advance(
                _bytes(part.data),
                _bytes(other),
                factors,
                parameters[here],
                momentum[here],
                *numbers,
                published[here],
                told[its],
                squares,
            )
        return is_fine

    told = advance_by(write, published, parameters, unread)
    return _after(outcome, squares, total_weight), told


def _is_in_blocks(payloads: Sequence[Payload]) -> bool:
    """Whether shards in int8 follow one another, each from where a block of the fragment begins."""
    done = 0
    for payload in payloads:
        if payload.codec != pb.CODEC_INT8 or payload.extent.span_count != 1 or done % BLOCK:
            return False
        ((start, length),) = payload.extent.spans().tolist()
        if start != done:
            return False
        done += length
    return True


def _before(pair: Pair, total_weight: float, settings: OuterSettings) -> Outcome:
    """What the step is to do: its norm is NaN where that is not needed before, and small enough.

    A sum's norm is at most the sum of its terms' norms: under the clip it clips nothing.
    """
    weights = pair.first.weight * pair.second.rescale, pair.second.weight
    norms = pair.first.norm, pair.second.norm
    most = sum(abs(w) * norm for w, norm in zip(weights, norms, strict=True)) / total_weight
    most *= 1.0 + _ROUNDING
    if is_finite(most) and (settings.clip is None or most + CLIP_EPSILON <= settings.clip):
        return Outcome(math.nan, 1.0)
    return outcome_of(_square_sum(pair), total_weight, settings)


def _after(outcome: Outcome, squares: Float64, total_weight: float) -> Outcome:
    """The same, with the norm of what has been stepped, if it was not needed before."""
    if not math.isnan(outcome.merged_norm):
        return outcome
    return replace(outcome, merged_norm=math.sqrt(float(squares.sum())) / total_weight)


def _square_sum(pair: Pair) -> float:
    """Of the pair's sum, which is made anew for it, piece by piece."""
    squares, factors = Squares(), pair.factors
    piece, filled = np.empty(PIECE, np.float32), 0
    for part, other in pair.parts():
        done = 0
        while done < part.elements:
            here = min(PIECE - filled, part.elements - done)
            its = slice(_INT8.size(done), _INT8.size(done + here))
            into = piece[filled : filled + here]
            _INT8.scale_both(part.data[its], other[its], into, factors)
            done, filled = done + here, filled + here
            if filled == PIECE:
                squares.add(piece)
                filled = 0
    return squares.total_with(piece[:filled])


def _bytes(data: Bytes) -> UInt8:
    return np.frombuffer(data, np.uint8)
