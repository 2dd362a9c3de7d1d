"""The merge once more: one fragment's rounds in plain numpy, written from docs/protocol.md.

Shares no code with the service. It folds what was sent, in the order and with the factors that the
store has recorded, and makes the outer step, clipped by the factor that is recorded, too; the
service must have the same bits. The norm behind that factor is a sum in no stated order: of the
recorded factor, in fp64, nine digits must be ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from syncline_proto.merging import OuterSettings
from syncline_proto.v1 import sync_pb2 as pb

Float32 = npt.NDArray[np.float32]

INT8_BLOCK, INT4_BLOCK, TOPK_BLOCK = 256, 32, 4096
SCALE_MIN = np.float32(2.0**-126)
DIGITS = 1e-9
"""In which two sums of the same squares agree, whatever their order."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A push that counts, and the factors that the store has recorded of it."""

    values: Float32
    folded: float
    rescale: float
    kept: float
    """What its age has left of its weight: 1 if it was in time."""


@dataclass(frozen=True, slots=True)
class Window:
    """Where a window of a run stands whose rounds do not wait, before its next push."""

    size: int
    done: int = 0
    number: int = 0
    """Windows that are over."""
    age: float = 0.0
    """The running mean of how far bases lay behind, in rounds of ``size`` revisions."""

    def after(self, ages: Sequence[int]) -> Window:
        """With accepted pushes more, whose bases lay so many revisions behind."""
        age = self.age
        for revisions in ages:
            age += 0.1 * (revisions / self.size - age)
        done = self.done + len(ages)
        over = done >= self.size
        return Window(self.size, 0 if over else done, self.number + over, age)

    def numbers(self, outer: OuterSettings, pushes: int) -> tuple[float, float, float]:
        """What the momentum is scaled by, and ahead of it the parameters, in the next step; lr."""
        restarts = outer.restart_every and self.number % outer.restart_every == 0
        keep = 1.0 if self.done else 0.0 if restarts else outer.momentum
        ahead = outer.momentum if self.done + pushes >= self.size else 0.0
        if outer.age_guard is None or self.age <= 1.0:
            return keep, ahead, outer.lr
        bound = 2.0 * math.sin(math.pi / (4.0 * self.age + 2.0))
        return keep, ahead, min(outer.lr, outer.age_guard * (1.0 - outer.momentum) * bound)


def decoded(payload: bytes, codec: pb.Codec.ValueType, numel: int) -> Float32:
    """What a payload of so many elements says."""
    if codec == pb.CODEC_FP32:
        return np.frombuffer(payload, "<f4")
    if codec == pb.CODEC_BF16:
        return widened(payload)
    if codec == pb.CODEC_INT4:
        return _int4(payload, numel)
    if codec == pb.CODEC_TOPK:
        return _topk(payload, numel)
    assert codec == pb.CODEC_INT8
    step = 4 + INT8_BLOCK
    blocks = [payload[at : at + step] for at in range(0, len(payload), step)]
    return np.concatenate(
        [np.frombuffer(b, "<f4", 1) * np.frombuffer(b, np.int8, -1, 4) for b in blocks],
        dtype=np.float32,
    )


def _int4(payload: bytes, numel: int) -> Float32:
    count = -(-numel // INT4_BLOCK)
    size = 2 + INT4_BLOCK // 2
    blocks = np.frombuffer(payload.ljust(count * size, b"\0"), np.uint8).reshape(count, size)
    scales, pairs = widened(blocks[:, :2].tobytes()), blocks[:, 2:]
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(count, INT4_BLOCK)
    q = (nibbles.astype(np.int8) ^ 8) - 8
    return (scales[:, None] * q.astype(np.float32)).ravel()[:numel]


def _topk(payload: bytes, numel: int) -> Float32:
    values, at = np.zeros(numel, np.float32), 0
    for start in range(0, numel, TOPK_BLOCK):
        n = min(TOPK_BLOCK, numel - start)
        k = -(-n // 64)
        indices_at, codes_at = at + 4, at + 4 + -(-12 * k // 8)
        small, large = widened(payload[at:indices_at])
        at = codes_at + -(-2 * k // 8)
        places = _bits(payload[indices_at:codes_at], k, 12) @ (1 << np.arange(12))
        is_large, is_negative = _bits(payload[codes_at:at], k, 2).T
        magnitudes = np.where(is_large, large, small)
        values[start + places] = np.where(is_negative, -magnitudes, magnitudes)
    assert at == len(payload)
    return values


def _bits(data: bytes, rows: int, each: int) -> npt.NDArray[np.int64]:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return bits[: rows * each].reshape(rows, each).astype(np.int64)


def widened(payload: bytes) -> Float32:
    """What a payload of bf16 says, in an array of its own."""
    return (np.frombuffer(payload, "<u2").astype(np.uint32) << 16).view(np.float32)


def bf16(values: Float32) -> bytes:
    """Finite values as bf16 on the wire, rounded to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


def followed(held: bytes, chunks: Sequence[bytes]) -> bytes:
    """The value, in bf16, that a difference leads to from the one before."""
    values, at = widened(held), 0
    for chunk in chunks:
        here = 0
        while here < len(chunk):
            count = min(INT8_BLOCK - at % INT8_BLOCK, values.size - at, len(chunk) - here - 4)
            assert count > 0, "more has come than there is"
            scale = np.frombuffer(chunk, "<f4", 1, here)
            values[at : at + count] += scale * np.frombuffer(chunk, np.int8, count, here + 4)
            at, here = at + count, here + 4 + count
    assert at == values.size, "less has come than there is"
    return bf16(values)


def advanced(held: bytes, values: Float32) -> bytes:
    """The next value that is published, in bf16, where differences of int8 lead to it."""
    before = widened(held)
    change = np.zeros((-(-values.size // INT8_BLOCK), INT8_BLOCK), np.float32)
    change.flat[: values.size] = values - before
    peaks = np.abs(change).max(axis=1, keepdims=True) / np.float32(127)
    scales = (peaks.view(np.uint32) & 0xFFFFFF80).view(np.float32)
    scales = np.where(peaks > 0, np.maximum(scales, SCALE_MIN), np.float32(0))
    inverse = np.float32(1) / np.maximum(scales, SCALE_MIN)
    steps = (np.rint(change * inverse) * scales).ravel()[: values.size]
    return bf16(before + steps)


def merged(
    parameters: Float32,
    momentum: Float32,
    pushes: Sequence[Folded],
    outer: OuterSettings,
    clip: float | None,
    window: Window | None = None,
) -> tuple[Float32, Float32]:
    """Parameters and momentum after a round; ``clip`` is the factor that the service recorded.

    ``window`` is that of a run whose rounds do not wait: what is folded is divided by its size.
    """
    if not pushes:
        assert clip is None, "nothing was there to be clipped"
        return parameters, momentum
    accumulator, total = np.zeros_like(parameters), 0.0
    for push in pushes:
        if push.rescale != 1.0:
            accumulator = accumulator * np.float32(push.rescale)
        accumulator = accumulator + push.values * np.float32(push.folded)
        total = total * push.rescale + push.folded / push.kept
    keep, ahead, rate, of = outer.momentum, outer.momentum, outer.lr, 1
    if window is not None:
        keep, ahead, rate = window.numbers(outer, len(pushes))
        of = window.size
        total = float(of)
    norm = math.sqrt(float(np.sum(np.square(accumulator, dtype=np.float64)))) / total
    ours = 1.0 if outer.clip is None else min(1.0, outer.clip / of / (norm + 1e-6))
    assert clip is not None and math.isclose(clip, ours, rel_tol=DIGITS), f"{clip}, and not {ours}"
    d = np.multiply(accumulator, np.float32(clip / total), dtype=np.float32)
    v = momentum * np.float32(keep) + d
    step = (d + v * np.float32(ahead)) * np.float32(rate)
    return parameters - step, v  # pyright: ignore[reportReturnType]
