"""The merge once more: one fragment's rounds in plain numpy, written from docs/protocol.md.

Shares no code with the service. It folds what was sent, in the order and with the factors that the
store has recorded, and makes the outer step; the service must have the same bits. One number is not
given to the bit: the norm that clips is a sum in no stated order, good to six digits, so that the
clip's factor may be any fp32 next to ours; but one for all elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from syncline_proto.settings import OuterSettings
from syncline_proto.v1 import sync_pb2 as pb

Float32 = npt.NDArray[np.float32]

INT8_BLOCK = 256
DIGITS = 1e-6
NEIGHBOURS = 20
"""Numbers in fp32, to either side, that the clip's factor may be off: six digits."""
PROBED = 4096
"""Elements that tell one factor from the next."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A push that counts, and the factors that the store has recorded of it."""

    values: Float32
    folded: float
    rescale: float


def decoded(payload: bytes, codec: pb.Codec.ValueType) -> Float32:
    """What a payload of fp32, bf16 or int8 says."""
    if codec == pb.CODEC_FP32:
        return np.frombuffer(payload, "<f4")
    if codec == pb.CODEC_BF16:
        return (np.frombuffer(payload, "<u2").astype(np.uint32) << 16).view(np.float32)
    assert codec == pb.CODEC_INT8
    step = 4 + INT8_BLOCK
    blocks = [payload[at : at + step] for at in range(0, len(payload), step)]
    return np.concatenate(
        [np.frombuffer(b, "<f4", 1) * np.frombuffer(b, np.int8, -1, 4) for b in blocks],
        dtype=np.float32,
    )


def bf16(values: Float32) -> bytes:
    """Finite values as bf16 on the wire, rounded to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


def merged(
    parameters: Float32,
    momentum: Float32,
    pushes: Sequence[Folded],
    outer: OuterSettings,
    seen: Float32,
) -> tuple[Float32, Float32]:
    """Parameters and momentum after a round; ``seen`` is the momentum that the service has.

    That is looked at for nothing but which of the neighbouring clip factors it took.
    """
    if not pushes:
        return parameters, momentum
    accumulator, total = np.zeros_like(parameters), 0.0
    for push in pushes:
        if push.rescale != 1.0:
            accumulator = accumulator * np.float32(push.rescale)
        accumulator = accumulator + push.values * np.float32(push.folded)
        total = total * push.rescale + push.folded
    norm = math.sqrt(float(np.sum(np.square(accumulator, dtype=np.float64)))) / total
    mu, lr = np.float32(outer.momentum), np.float32(outer.lr)
    probe, few = momentum[:PROBED] * mu, accumulator[:PROBED]
    for factor in _factors(norm, total, outer.clip):
        if np.array_equal(probe + few * factor, seen[:PROBED]):
            break
    else:
        raise AssertionError(f"no factor of a clip of norm {norm:.9g} gives the momentum there is")
    d = np.multiply(accumulator, factor, dtype=np.float32)
    v = momentum * mu + d
    return parameters - (d + v * mu) * lr, v  # pyright: ignore[reportReturnType]


def _factors(norm: float, total: float, clip: float | None) -> Iterator[np.float32]:
    """What D / W may have been multiplied by, the likeliest first."""
    if clip is None or norm <= clip * (1 + DIGITS):
        yield np.float32(1.0 / total)
    if clip is not None and norm >= clip * (1 - DIGITS):
        up = down = np.float32(clip / (norm + 1e-6) / total)
        yield up
        for _ in range(NEIGHBOURS):
            up, down = np.nextafter(up, np.float32(np.inf)), np.nextafter(down, np.float32(0))
            yield up
            yield down
