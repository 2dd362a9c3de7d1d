"""The inner loops of int8, over flat arrays: blocks of up to 256 integers under one scale.

What is done with one block is written once, for ``count`` elements from given places on. Each loop
does the full blocks with the constant ``BLOCK`` for ``count``, and a shorter last one by itself: a
loop of a known length becomes a few wide instructions, which takes a quarter of the time. bf16 is
given as its bits. Lengths are not checked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from syncline_proto.codec.loops import (
    INFINITE,
    MAGNITUDE,
    Float32,
    UInt8,
    UInt16,
    soon_read,
    soon_written,
    widened,
)
from syncline_proto.compiled import compiled, inner, read, written

Int8 = npt.NDArray[np.int8]

BLOCK = 256
SCALE_BYTES = 4
BLOCK_BYTES = SCALE_BYTES + BLOCK

FINE, BAD_SCALE, BAD_INTEGER = 0, 1, 2
"""What reading comes to: no encoder writes a scale that is negative or infinite, or a -128."""

_LEVELS = np.float32(127.0)
_NAN = np.uint32(0x7FC00000)
_SCALE_BITS, _SCALE_MIN = np.uint32(0xFFFFFF80), np.uint32(0x00800000)
_NONE, _BYTE = np.uint32(0), np.uint32(0xFF)


@inner
def scale_at(blocks: Int8, at: int) -> np.uint32:
    """The bits of the scale of the block that begins at byte ``at``."""
    scale = _NONE
    for i in range(SCALE_BYTES):
        scale |= np.uint32(np.uint8(blocks[at + i])) << np.uint32(8 * i)
    return np.uint32(scale)


@inner
def found_in(blocks: Int8, scale: int, at: int, count: int) -> int:
    """Whether an encoder may have written elements at ``at`` under the scale at ``scale``."""
    bits = np.uint32(scale_at(blocks, scale))
    if bits >= INFINITE and bits & MAGNITUDE <= INFINITE:
        return BAD_SCALE
    least = np.int8(0)
    for i in range(count):
        value = blocks[at + i]
        least = value if value < least else least  # min() of numba's widens to 64 bits
    return BAD_INTEGER if least == -128 else FINE


@inner
def block_check(blocks: Int8, at: int, count: int) -> int:
    """``found_in`` such a block."""
    return found_in(blocks, at, at + SCALE_BYTES, count)


@inner
def larger(one: np.uint32, other: np.uint32) -> np.uint32:
    """The larger of two; max() of numba's widens to 64 bits, which halves a loop's pace."""
    return other if other > one else one


@inner
def magnitude(value: np.float32) -> np.uint32:
    """The bits of fp32 without its sign: in the order of magnitudes, with NaN above infinity."""
    return np.uint32(np.float32(value).view(np.uint32) & MAGNITUDE)


@inner
def scale_put(peak: np.uint32, out: Int8, at: int) -> np.uint32:
    """Write the scale of a block whose largest magnitude is ``peak``, and return its bits.

    It is peak / 127 without the lower bits of fp32's, for the same ends as int4's.
    """
    scale = _NONE
    if peak > _NONE:
        least = np.float32(np.uint32(peak).view(np.float32) / _LEVELS)
        scale = max(np.float32(least).view(np.uint32) & _SCALE_BITS, _SCALE_MIN)
    for i in range(SCALE_BYTES):
        out[at + i] = np.int8(np.uint8(scale >> np.uint32(8 * i) & _BYTE))
    return np.uint32(scale)


@inner
def inverse_of(scale: np.uint32) -> np.float32:
    """What values are multiplied by to be integers."""
    return np.float32(1.0) / np.uint32(max(scale, _SCALE_MIN)).view(np.float32)


@inner
def integers_put(
    values: Float32, start: int, count: int, peak: np.uint32, out: Int8, at: int
) -> None:
    """Write a block of finite values, the largest magnitude of which is ``peak``."""
    inverse = inverse_of(scale_put(peak, out, at))
    for i in range(count):
        out[at + SCALE_BYTES + i] = np.int8(np.int32(np.rint(values[start + i] * inverse)))


@inner
def block_write(values: Float32, start: int, count: int, out: Int8, at: int) -> bool:
    """Write a block. False, and nothing is written, if a value is not finite."""
    peak = _NONE
    for i in range(count):
        peak = larger(peak, magnitude(values[start + i]))
    if peak >= INFINITE:
        return False
    integers_put(values, start, count, peak, out, at)
    return True


@inner
def block_lose(count: int, out: Int8, at: int) -> None:
    """Write a block that decodes to NaN."""
    for i in range(SCALE_BYTES):
        out[at + i] = np.int8(np.uint8(_NAN >> np.uint32(8 * i) & _BYTE))
    for i in range(count):
        out[at + SCALE_BYTES + i] = 1


@inner
def block_scale(
    blocks: Int8, at: int, count: int, out: Float32, start: int, factor: np.float32
) -> int:
    """out = factor * block; return what ``block_check`` finds."""
    soon_written(out, start, 4 * count)
    scale = np.uint32(scale_at(blocks, at)).view(np.float32)
    for i in range(count):
        out[start + i] = np.float32(blocks[at + SCALE_BYTES + i]) * scale * factor
    return block_check(blocks, at, count)


@inner
def block_add(
    blocks: Int8, at: int, count: int, out: Float32, start: int, factor: np.float32
) -> int:
    """out += factor * block; return what ``block_check`` finds."""
    soon_written(out, start, 4 * count)
    scale = np.uint32(scale_at(blocks, at)).view(np.float32)
    for i in range(count):
        out[start + i] += np.float32(blocks[at + SCALE_BYTES + i]) * scale * factor
    return block_check(blocks, at, count)


@inner
def block_scale_both(
    blocks: Int8,
    others: Int8,
    at: int,
    count: int,
    out: Float32,
    start: int,
    factor: np.float32,
    rescale: np.float32,
    other_factor: np.float32,
) -> int:
    """out = rescale * (factor * block) + other_factor * other; return what ``block_check`` finds.

    Both begin at byte ``at``.
    """
    soon_written(out, start, 4 * count)
    scale = np.uint32(scale_at(blocks, at)).view(np.float32)
    other_scale = np.uint32(scale_at(others, at)).view(np.float32)
    for i in range(count):
        first = np.float32(blocks[at + SCALE_BYTES + i]) * scale * factor * rescale
        second = np.float32(others[at + SCALE_BYTES + i]) * other_scale * other_factor
        out[start + i] = first + second
    found = block_check(blocks, at, count)
    return found if found != FINE else block_check(others, at, count)


@inner
def block_copy(blocks: Int8, at: int, count: int, out: Int8) -> float:
    """out = block, as bytes; return its sum of squares, or minus what ``block_check`` finds."""
    soon_written(out, at, BLOCK_BYTES)
    for i in range(SCALE_BYTES + count):
        out[at + i] = blocks[at + i]
    found = block_check(blocks, at, count)
    if found != FINE:
        return -float(found)
    total = np.int32(0)
    for i in range(count):
        total += np.int32(blocks[at + SCALE_BYTES + i]) * np.int32(blocks[at + SCALE_BYTES + i])
    scale = np.float64(np.uint32(scale_at(blocks, at)).view(np.float32))
    return np.float64(total) * scale * scale


@compiled("void", read("float32"), written("uint8"))
def encode(values: Float32, out: UInt8) -> None:
    """Write blocks of ``values``; one with a value that is not finite decodes to NaN."""
    blocks, full, rest = out.view(np.int8), values.size // BLOCK, values.size % BLOCK
    for k in range(full):
        if not block_write(values, k * BLOCK, BLOCK, blocks, k * BLOCK_BYTES):
            block_lose(BLOCK, blocks, k * BLOCK_BYTES)
    if rest and not block_write(values, full * BLOCK, rest, blocks, full * BLOCK_BYTES):
        block_lose(rest, blocks, full * BLOCK_BYTES)


@inner
def block_less(
    anchor: UInt16,
    values: Float32,
    start: int,
    count: int,
    change: Float32,
    out: Int8,
    at: int,
) -> None:
    """out = anchor - values, as a block; NaN where something is not finite."""
    soon_read(anchor, start, 2 * count)
    soon_read(values, start, 4 * count)
    soon_written(out, at, count)
    peak = _NONE
    for i in range(count):
        change[i] = widened(anchor[start + i]) - values[start + i]
        peak = larger(peak, magnitude(change[i]))
    if peak >= INFINITE:
        block_lose(count, out, at)
    else:
        integers_put(change, 0, count, peak, out, at)


@compiled("int64", written("float32"), "int64", read("uint16"), read("float32"), written("uint8"))
def encode_less(before: Float32, filled: int, anchor: UInt16, values: Float32, out: UInt8) -> int:
    """``encode`` of ``before[:filled]`` and then anchor - values; ``anchor`` is bf16.

    What is over at the end fills no block, and goes to the start of ``before``; return how much.
    """
    blocks, done = out.view(np.int8), filled // BLOCK
    for k in range(done):
        if not block_write(before, k * BLOCK, BLOCK, blocks, k * BLOCK_BYTES):
            block_lose(BLOCK, blocks, k * BLOCK_BYTES)
    over, start = filled % BLOCK, 0
    if over:
        start = min(BLOCK - over, values.size)
        for i in range(over):
            before[i] = before[done * BLOCK + i]
        for i in range(start):
            before[over + i] = widened(anchor[i]) - values[i]
        if over + start < BLOCK:
            return over + start
        if not block_write(before, 0, BLOCK, blocks, done * BLOCK_BYTES):
            block_lose(BLOCK, blocks, done * BLOCK_BYTES)
        done += 1
    # Views, else nobody knew that places in a loop are not negative.
    less, than, into = anchor[start:], values[start:], blocks[done * BLOCK_BYTES :]
    change = np.empty(BLOCK, np.float32)
    full, rest = than.size // BLOCK, than.size % BLOCK
    for k in range(full):
        block_less(less, than, k * BLOCK, BLOCK, change, into, k * BLOCK_BYTES)
    for i in range(rest):
        before[i] = widened(less[full * BLOCK + i]) - than[full * BLOCK + i]
    return rest


@compiled("float64", read("uint8"), written("uint8"), "int64")
def copy(data: UInt8, out: UInt8, elements: int) -> float:
    """out = data; return its sum of squares, in float64, or minus what is found: not ``FINE``."""
    blocks, into = data.view(np.int8), out.view(np.int8)
    full, rest, total = elements // BLOCK, elements % BLOCK, 0.0
    for k in range(full):
        one = block_copy(blocks, k * BLOCK_BYTES, BLOCK, into)
        if one < 0.0:
            return one
        total += one
    if rest:
        one = block_copy(blocks, full * BLOCK_BYTES, rest, into)
        return one if one < 0.0 else total + one
    return total


@compiled("int64", read("uint8"), written("float32"), "float32")
def scale_into(data: UInt8, out: Float32, factor: np.float32) -> int:
    """out = factor * blocks; return what is found.

    Anything may be in ``out`` where that is not ``FINE``.
    """
    blocks, full, rest = data.view(np.int8), out.size // BLOCK, out.size % BLOCK
    for k in range(full):
        found = block_scale(blocks, k * BLOCK_BYTES, BLOCK, out, k * BLOCK, factor)
        if found != FINE:
            return found
    return (
        block_scale(blocks, full * BLOCK_BYTES, rest, out, full * BLOCK, factor) if rest else FINE
    )


@compiled("int64", read("uint8"), written("float32"), "float32")
def add(data: UInt8, out: Float32, factor: np.float32) -> int:
    """out += factor * blocks; as ``scale_into``."""
    blocks, full, rest = data.view(np.int8), out.size // BLOCK, out.size % BLOCK
    for k in range(full):
        found = block_add(blocks, k * BLOCK_BYTES, BLOCK, out, k * BLOCK, factor)
        if found != FINE:
            return found
    return block_add(blocks, full * BLOCK_BYTES, rest, out, full * BLOCK, factor) if rest else FINE


@compiled("int64", read("uint8"), read("uint8"), written("float32"), read("float32"))
def scale_both(data: UInt8, other: UInt8, out: Float32, factors: Float32) -> int:
    """``loops.scale_both`` of blocks; as ``scale_into``."""
    factor, rescale, other_factor = factors[0], factors[1], factors[2]
    blocks, others = data.view(np.int8), other.view(np.int8)
    full, rest = out.size // BLOCK, out.size % BLOCK
    for k in range(full):
        at, start = k * BLOCK_BYTES, k * BLOCK
        found = block_scale_both(
            blocks, others, at, BLOCK, out, start, factor, rescale, other_factor
        )
        if found != FINE:
            return found
    at, start = full * BLOCK_BYTES, full * BLOCK
    return (
        block_scale_both(blocks, others, at, rest, out, start, factor, rescale, other_factor)
        if rest
        else FINE
    )
