"""The arithmetic of a round: fold pushes into one accumulator, then one outer step.

Pure, on flat fp32 vectors of one fragment, in place; inner loops are in ``loops``. The accumulator
is the only memory a round needs, whatever the number of replicas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from syncline_proto.codec import (
    Bytes,
    Codec,
    Float32,
    UInt8,
    UInt16,
    advance,
    advance_by,
    codec_of,
)
from syncline_proto.merging import OuterSettings
from syncline_proto.spans import Extent
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import loops
from syncline_sync.core.detector import is_finite
from syncline_sync.core.squares import SQUARES_PIECE, Squares
from syncline_sync.core.window import Carry

CLIP_EPSILON = 1e-6

Numbers: TypeAlias = tuple[np.float32, np.float32, np.float32, np.float32]
"""clip / W, the two mu, and lr."""


@dataclass(frozen=True, slots=True)
class Payload:
    """One rank's shard as it came, encoded, and where it lies in the flat vector."""

    codec: pb.Codec.ValueType
    parts: tuple[Bytes, ...]
    """One after another they are the payload; cut at the codec's grain."""
    extent: Extent

    def is_cut_as(self, other: Payload) -> bool:
        """Whether each part of it has the same elements in the same places as the other's."""
        return (
            self.codec == other.codec
            and list(map(len, self.parts)) == list(map(len, other.parts))
            and self.extent.is_like(other.extent)
        )


@dataclass(frozen=True, slots=True)
class Weighed:
    """A push as it is folded: its shards, and the numbers that ``fold`` takes."""

    payloads: Sequence[Payload]
    weight: float
    rescale: float
    norm: float = math.inf
    """Of what the payloads decode to; infinite where nobody knows it."""
    as_it_came: bool = True
    """Whether an outer step may be able to take it so: see ``few.is_likely``."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an outer step did; ``clip`` is the factor that the norm was multiplied by."""

    merged_norm: float
    clip: float
    cosine: float | None = None
    """Between what was merged and the momentum, where directions are corrected."""


def fold(
    accumulator: Float32,
    payloads: Iterable[Payload],
    weight: float,
    rescale: float = 1.0,
    *,
    is_first: bool = False,
) -> None:
    """accumulator = rescale * accumulator + weight * D, for the shards of one push; in place.

    ``accumulator`` is fp32 [numel], the fragment's flat vector; the first push of a round finds
    anything in it, and leaves weight * D. D is what the payloads decode to, laid out by their
    spans, which cover it once. All must be finite, ``weight`` and ``rescale`` too: 0 * inf would
    stay in the sum. What their products become in fp32 is the caller's to bound (weights: e**30 at
    most; norms: ``detector.NORM_LIMIT``).
    """
    if rescale != 1.0 and not is_first:
        accumulator *= np.float32(rescale)
    factor = np.float32(weight)
    for part in parts_of(payloads):
        into = accumulator[part.at : part.at + part.elements]
        put = part.codec.scale if is_first else part.codec.add
        put(part.data, into, factor)


def begin(accumulator: Float32, pushes: Sequence[Weighed]) -> Squares:
    """accumulator = what ``fold`` of these pushes, the first of a round, leaves; bit for bit.

    Of the first two, where they are cut alike, it is written once: 2.5 times the bytes of fp32 go
    through memory for two pushes in int8, in place of 4.5. Returns its squares, as far as they were
    taken on the way.
    """
    if len(pushes) > 1 and are_cut_alike(pushes[0].payloads, pushes[1].payloads):
        squares = _begin_both(accumulator, *pushes[:2])
        others = pushes[2:]
    else:
        fold(accumulator, pushes[0].payloads, pushes[0].weight, is_first=True)
        squares, others = Squares(), pushes[1:]
    for push in others:
        fold(accumulator, push.payloads, push.weight, push.rescale)
        squares = Squares()
    return squares


def _begin_both(accumulator: Float32, first: Weighed, other: Weighed) -> Squares:
    """``begin`` with two that are cut alike."""
    squares, written = Squares(), 0
    factors = np.array([first.weight, other.rescale, other.weight], np.float32)
    for part, beside in zip(parts_of(first.payloads), parts_of(other.payloads), strict=True):
        at = part.at
        for data, its in zip(_pieces(part), _pieces(beside), strict=True):
            end = min(at + SQUARES_PIECE, part.at + part.elements)
            part.codec.scale_both(data, its, accumulator[at:end], factors)
            written = end if at == written else written
            squares.take(accumulator, written)
            at = end
    return squares


def are_cut_alike(some: Sequence[Payload], others: Sequence[Payload]) -> bool:
    """Whether each shard of a push is cut as that of the other."""
    return len(some) == len(others) and all(map(Payload.is_cut_as, some, others))


def decoded(payloads: Iterable[Payload]) -> Iterator[tuple[int, Float32]]:
    """What the shards of a push decode to, piece by piece, and where in the flat vector.

    A piece is the reader's until the next.
    """
    for part in parts_of(payloads):
        at = part.at
        for values in part.codec.pieces(part.data, part.elements):
            yield at, values
            at += values.size


def place(target: Float32, payloads: Iterable[Payload]) -> None:
    """target = D, fp32 [numel]: write the shards of a whole push where they belong."""
    for part in parts_of(payloads):
        part.codec.decode_into(part.data, target[part.at : part.at + part.elements])


def outer_step(
    parameters: Float32,
    momentum: Float32,
    accumulator: Float32,
    total_weight: float,
    settings: OuterSettings,
    carry: Carry | None = None,
    squares: Squares | None = None,
) -> Outcome:
    """Apply the merged pseudo-gradient; needs a finite ``total_weight`` W > 0.

    ``parameters``, ``momentum`` and ``accumulator`` are fp32 [numel]. ``parameters`` stay as they
    are, since they may be read meanwhile: the new ones are left in ``accumulator``. ``momentum`` is
    changed in place. If D is not finite nothing changes, as if nothing had been folded (``clip`` is
    0 then, and ``accumulator`` undefined).

        D = acc / W ;  D *= min(1, phi / (||D|| + eps)) ;  v = mu v + D ;  theta -= lr (D + mu v)

    ``carry`` says otherwise what each of the two mu is (``window``). ``squares`` are the
    accumulator's, as far as they were taken.

    Source: torch.optim.SGD(nesterov=True) on the merged pseudo-gradient, as DiLoCo (arXiv
    2311.08105); the clip is EDiT's, per fragment. In fp32, in this order: acc times the one factor
    clip / W; mu v; + D; mu v; + D; times lr; theta minus that.
    """
    square_sum = (squares or Squares()).of(accumulator)
    outcome = outcome_of(square_sum, total_weight, settings)
    if outcome.clip:
        numbers = numbers_of(outcome.clip, total_weight, settings, carry)
        loops.step(parameters, momentum, accumulator, *numbers)
    return outcome


def step_and_advance(
    parameters: Float32,
    momentum: Float32,
    accumulator: Float32,
    total_weight: float,
    settings: OuterSettings,
    published: UInt16,
    unread: memoryview | None = None,
    carry: Carry | None = None,
    squares: Squares | None = None,
) -> tuple[Outcome, memoryview | None]:
    """``outer_step``, then ``codec.advance`` of ``published`` to what that makes, in one pass.

    ``published`` is bf16, as bits [numel]; it follows parameters that did not change, too.
    """
    square_sum = (squares or Squares()).of(accumulator)
    outcome = outcome_of(square_sum, total_weight, settings)
    if not outcome.clip:
        return outcome, advance(published, parameters, unread)
    numbers = numbers_of(outcome.clip, total_weight, settings, carry)

    def write(out: UInt8) -> bool:
        return loops.step_and_advance(parameters, momentum, accumulator, *numbers, published, out)

    return outcome, advance_by(write, published, accumulator, unread)


def outcome_of(square_sum: float, total_weight: float, settings: OuterSettings) -> Outcome:
    """What the step is to do, by the squares of the round's sum."""
    norm = math.sqrt(square_sum) / total_weight
    if not is_finite(norm):
        return Outcome(norm, 0.0)
    clip = 1.0 if settings.clip is None else min(1.0, settings.clip / (norm + CLIP_EPSILON))
    return Outcome(norm, clip)


def numbers_of(
    clip: float, total_weight: float, settings: OuterSettings, carry: Carry | None
) -> Numbers:
    """What the loops of a step are told."""
    carry = carry or Carry(settings.momentum, settings.momentum)
    factor = np.float32(clip / total_weight)
    return factor, np.float32(carry.keep), np.float32(carry.ahead), np.float32(settings.lr)


def mean(accumulator: Float32, total_weight: float) -> None:
    """accumulator = acc / W, fp32 [numel]: the published mean of a gradient round; W > 0."""
    np.divide(accumulator, np.float32(total_weight), out=accumulator)


@dataclass(frozen=True, slots=True)
class Part:
    """Encoded values that lie together in the flat vector: ``elements`` from ``at`` on."""

    codec: Codec
    at: int
    elements: int
    data: Bytes


def parts_of(payloads: Iterable[Payload]) -> Iterator[Part]:
    """Shards, cut where their spans end; each part is for reading, until the next."""
    for payload in payloads:
        spans = payload.extent.spans()
        span, used = 0, 0  # the current one, and how much of it is done
        for codec, elements, data in _cuttable(payload):
            done = 0
            while done < elements:
                start, length = (int(n) for n in spans[span])
                here = min(elements - done, length - used)
                cut = data[codec.size(done) : codec.size(done + here)]
                yield Part(codec, start + used, here, cut)
                done, used = done + here, used + here
                if used == length:
                    span, used = span + 1, 0


def _pieces(part: Part) -> Iterator[Bytes]:
    """A part's data, cut so that what a piece becomes is in the cache still when it is looked at.

    Each but the last is of ``SQUARES_PIECE`` elements, a multiple of every codec's grain.
    """
    step = part.codec.size(SQUARES_PIECE)
    return (part.data[at : at + step] for at in range(0, len(part.data), step))


def _cuttable(payload: Payload) -> Iterator[tuple[Codec, int, Bytes]]:
    """A shard as it came where its spans do not end within blocks, else decoded piece by piece."""
    codec, left = codec_of(payload.codec), payload.extent.elements
    for part in payload.parts:
        # What is in a last block, which may be padded, the spans know.
        count = left if len(part) == codec.size(left) else codec.elements(len(part))
        assert count is not None
        if codec.block == 1 or payload.extent.span_count == 1:
            yield codec, count, part
        else:
            for values in codec.pieces(part, count):
                yield codec_of(pb.CODEC_FP32), values.size, values.data.cast("B")
        left -= count
