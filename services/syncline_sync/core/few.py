"""A few pushes that are all of a round, stepped as they came: their sum never is in memory.

A sum is written once for each push but one, and read for its norm and for the step, at 4 bytes an
element; a push as it came is 1 or 2. So all are gone through block by block for the step, which
takes the norm as well. That is too late where the sum may be long enough to be clipped: such a
round is not ``is_short``, and is summed. What becomes of parameters is, bit for bit, what
``merge.begin`` and ``merge.outer_step`` make of the same pushes; the norm is the same but for the
order of additions in fp64. Pure, and nothing else: whose push counts is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from syncline_proto.codec import Float32, UInt8, UInt16, advance_by, codec_of
from syncline_proto.codec.base import Float64
from syncline_proto.codec.int8_loops import BLOCK
from syncline_proto.merging import OuterSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import few_loops
from syncline_sync.core.detector import is_finite
from syncline_sync.core.few_loops import FEW_MAX
from syncline_sync.core.merge import (
    CLIP_EPSILON,
    Numbers,
    Outcome,
    Weighed,
    are_cut_alike,
    numbers_of,
    parts_of,
)
from syncline_sync.core.window import Carry

FEW_CODECS = (pb.CODEC_INT8, pb.CODEC_BF16)
"""Of pushes that the loops read."""

_INT8 = codec_of(pb.CODEC_INT8)

_ROUNDING = 1e-5
"""More than the norm of a sum in fp32 can be over the one in real numbers, as a part of it."""

_NO_PUSH = np.empty(0, np.uint8)

LoopPushes: TypeAlias = tuple[bool, int, UInt8, UInt8, UInt8, UInt8, Float32]
"""Pushes, as ``few_loops`` take them."""


@dataclass(frozen=True, slots=True)
class Few:
    """Pushes that ``few_of`` has found to lie block for block as the fragment does."""

    pushes: tuple[Weighed, ...]

    def is_short(self, total_weight: float, settings: OuterSettings) -> bool:
        """Whether an outer step clips nothing of their sum, as their norms tell.

        A sum's norm is at most the sum of its terms' norms.
        """
        most = 0.0
        for push in self.pushes:
            most = abs(push.rescale) * most + abs(push.weight) * push.norm
        most *= (1.0 + _ROUNDING) / total_weight
        return is_finite(most) and (settings.clip is None or most + CLIP_EPSILON <= settings.clip)

    @property
    def factors(self) -> Float32:
        """The first one's weight, then each other's rescale and weight: fp32 [2 FEW_MAX - 1]."""
        first, *others = self.pushes
        numbers = [first.weight, *(n for push in others for n in (push.rescale, push.weight))]
        return np.array([*numbers, *[0.0] * (2 * FEW_MAX - 1 - len(numbers))], np.float32)

    def parts(self) -> Iterator[tuple[slice, LoopPushes]]:
        """Where each part lies in the flat vector, and all pushes' as ``few_loops`` take it."""
        factors, count = self.factors, len(self.pushes)
        is_int8 = self.pushes[0].payloads[0].codec == pb.CODEC_INT8
        none = [_NO_PUSH] * (FEW_MAX - count)
        for parts in zip(*(parts_of(push.payloads) for push in self.pushes), strict=True):
            here = slice(parts[0].at, parts[0].at + parts[0].elements)
            data = [np.frombuffer(part.data, np.uint8) for part in parts]
            first, second, third, fourth = *data, *none
            yield here, (is_int8, count, first, second, third, fourth, factors)


def is_likely(norm: float, outer: OuterSettings) -> bool:
    """Whether a push of this norm may come to be one of a few that are stepped.

    If not, it is not to wait for that: what is summed at the end could have been summed before. Of
    pushes each of which is under the clip the mean is, too; and a direction is of the sum.
    """
    return not outer.direction.enabled and (outer.clip is None or norm <= outer.clip)


def few_of(pushes: Sequence[Weighed]) -> Few | None:
    """The pushes of a whole round as a few; None where their sum is needed.

    That is where they are none or more than ``FEW_MAX``, or not in one codec of ``CODECS`` and cut
    alike, or where a shard's blocks are not those of the fragment's flat vector, from its first
    element on; or where one is not to be taken ``as_it_came``.
    """
    if not 1 <= len(pushes) <= FEW_MAX or not all(push.as_it_came for push in pushes):
        return None
    first, *others = (push.payloads for push in pushes)
    fits = _is_in_blocks(pushes[0]) and all(are_cut_alike(first, other) for other in others)
    return Few(tuple(pushes)) if fits else None


def outer_step(
    few: Few,
    parameters: Float32,
    momentum: Float32,
    out: Float32,
    total_weight: float,
    settings: OuterSettings,
    carry: Carry | None = None,
) -> Outcome:
    """``merge.outer_step`` with the sum of the few, which is short; the new parameters: ``out``.

    All are fp32 [numel].
    """
    numbers, squares, room = _prepared(total_weight, settings, carry)
    for here, pushes in few.parts():
        few_loops.step(
            *pushes, parameters[here], momentum[here], out[here], *numbers, squares, room
        )
    return _outcome(squares, total_weight)


def step_and_advance(
    few: Few,
    parameters: Float32,
    momentum: Float32,
    total_weight: float,
    settings: OuterSettings,
    published: UInt16,
    unread: memoryview | None = None,
    carry: Carry | None = None,
) -> tuple[Outcome, memoryview | None]:
    """``merge.step_and_advance`` with the sum of the few, but in place: ``parameters`` are changed.

    What is published follows from ``published``, so nobody reads them meanwhile.
    """
    numbers, squares, room = _prepared(total_weight, settings, carry)

    def write(told: UInt8) -> bool:
        is_fine = True
        for here, pushes in few.parts():
            arrays = parameters[here], momentum[here]
            its = slice(_INT8.size(here.start), _INT8.size(here.stop))
            # What follows is stepped all the same where a difference cannot tell of this.
            is_fine &= few_loops.step_and_advance(
                *pushes, *arrays, *numbers, published[here], told[its], squares, room
            )
        return is_fine

    told = advance_by(write, published, parameters, unread)
    return _outcome(squares, total_weight), told


def _is_in_blocks(push: Weighed) -> bool:
    """Whether shards in one codec follow one another, all parts from where a block begins."""
    done, codec = 0, push.payloads[0].codec
    if codec not in FEW_CODECS:
        return False
    for payload in push.payloads:
        if payload.codec != codec or payload.extent.span_count != 1:
            return False
        ((start, length),) = payload.extent.spans().tolist()
        if start != done:
            return False
        done += length
    return all(part.at % BLOCK == 0 for part in parts_of(push.payloads))


def _prepared(
    total_weight: float, settings: OuterSettings, carry: Carry | None
) -> tuple[Numbers, Float64, Float32]:
    """A step's numbers, squares of none so far, and a loop's room."""
    numbers = numbers_of(1.0, total_weight, settings, carry)
    return numbers, np.zeros(BLOCK), np.empty(2 * BLOCK, np.float32)


def _outcome(squares: Float64, total_weight: float) -> Outcome:
    return Outcome(math.sqrt(float(squares.sum())) / total_weight, 1.0)
