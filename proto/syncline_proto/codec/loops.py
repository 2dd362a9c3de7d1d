"""The codecs' inner loops, over flat arrays; what they mean, the codecs say.

bf16 is given as its bits, and fp32 where bits are what is worked on. Lengths are not checked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from syncline_proto.compiled import compiled, inner, read, written

UInt8 = npt.NDArray[np.uint8]
UInt16 = npt.NDArray[np.uint16]
UInt32 = npt.NDArray[np.uint32]
Float32 = npt.NDArray[np.float32]

FINE, BAD_SCALE, BAD_INTEGER = 0, 1, 2
"""What reading int8 comes to: no encoder writes a scale that is negative or infinite, or a -128."""

_BLOCK = 256
_SCALE_BYTES = 4
_BLOCK_BYTES = _SCALE_BYTES + _BLOCK
_LEVELS = np.float32(127.0)

_MAGNITUDE, _INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_NAN, _QUIET = np.uint32(0x7FC00000), np.uint32(0x00400000)
_HALF, _ONE, _16 = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
_SCALE_BITS, _SCALE_MIN = np.uint32(0xFFFFFF80), np.uint32(0x00800000)
_NONE, _BYTE = np.uint32(0), np.uint32(0xFF)


@inner
def widened(bits: np.uint16) -> np.float32:
    """The fp32 value of bf16."""
    return np.uint32(np.uint32(bits) << _16).view(np.float32)


@inner
def rounded(value: np.float32) -> np.uint16:
    """Round fp32 to bf16, to nearest even; NaN stays NaN (quiet)."""
    bits = np.float32(value).view(np.uint32)
    if bits & _MAGNITUDE > _INFINITE:
        return np.uint16((bits | _QUIET) >> _16)
    return np.uint16((bits + _HALF + ((bits >> _16) & _ONE)) >> _16)


@inner
def peak_of(values: Float32) -> np.uint32:
    """The bits of the largest magnitude; those of NaN are larger than all."""
    peak = _NONE
    for i in range(values.size):
        peak = max(peak, np.float32(values[i]).view(np.uint32) & _MAGNITUDE)
    return peak


@inner
def block_write(values: Float32, peak: np.uint32, out: UInt8) -> None:
    """Write a block whose ``peak_of`` is finite; its scale is as ``blocks.quantised`` has it."""
    scale = _NONE
    if peak > _NONE:
        least = np.float32(np.uint32(peak).view(np.float32) / _LEVELS)
        scale = max(np.float32(least).view(np.uint32) & _SCALE_BITS, _SCALE_MIN)
    for i in range(_SCALE_BYTES):
        out[i] = (scale >> np.uint32(8 * i)) & _BYTE
    inverse = np.float32(1.0) / np.uint32(max(scale, _SCALE_MIN)).view(np.float32)
    into = out[_SCALE_BYTES:].view(np.int8)
    for i in range(values.size):
        into[i] = np.int8(np.int32(np.rint(values[i] * inverse)))


@inner
def block_read(data: UInt8, out: Float32) -> int:
    """Read a block of ``out.size`` elements, which begins where ``data`` does."""
    scale = _NONE
    for i in range(_SCALE_BYTES):
        scale |= np.uint32(data[i]) << np.uint32(8 * i)
    if scale >= _INFINITE and scale & _MAGNITUDE <= _INFINITE:
        return BAD_SCALE
    factor = np.uint32(scale).view(np.float32)
    integers = data[_SCALE_BYTES:].view(np.int8)
    least = np.int8(0)
    for i in range(out.size):
        least = min(least, integers[i])
    for i in range(out.size):
        out[i] = np.float32(integers[i]) * factor
    return BAD_INTEGER if least == -128 else FINE


@compiled("float64", read("float32"), is_sum=True)
def square_sum(values: Float32) -> float:
    """Sum of squares of fp32, in float64, which none overflows; NaN and inf pass through."""
    total = 0.0
    for i in range(values.size):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@compiled("float64", read("float32"), written("float32"), is_sum=True)
def copy(values: Float32, out: Float32) -> float:
    """out = values; their ``square_sum``."""
    total = 0.0
    for i in range(values.size):
        out[i] = values[i]
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@compiled("void", read("float32"), written("float32"), "float32")
def scale(values: Float32, out: Float32, factor: np.float32) -> None:
    """out = factor * values."""
    for i in range(out.size):
        out[i] = values[i] * factor


@compiled("void", read("float32"), written("float32"), "float32")
def add(values: Float32, out: Float32, factor: np.float32) -> None:
    """out += factor * values."""
    for i in range(out.size):
        out[i] += values[i] * factor


@compiled("void", read("float32"), written("uint16"))
def bf16_bits(values: Float32, out: UInt16) -> None:
    """Round fp32 to bf16."""
    for i in range(out.size):
        out[i] = rounded(values[i])


@compiled("void", read("uint16"), written("float32"))
def bf16_values(bits: UInt16, out: Float32) -> None:
    """The fp32 values of bf16."""
    for i in range(out.size):
        out[i] = widened(bits[i])


@compiled("float64", read("uint16"), written("uint16"), is_sum=True)
def bf16_copy(bits: UInt16, out: UInt16) -> float:
    """out = bits; their ``square_sum``."""
    total = 0.0
    for i in range(bits.size):
        out[i] = bits[i]
        value = np.float64(widened(bits[i]))
        total += value * value
    return total


@compiled("void", read("uint16"), written("float32"), "float32")
def bf16_scale(bits: UInt16, out: Float32, factor: np.float32) -> None:
    """out = factor * bf16."""
    for i in range(out.size):
        out[i] = widened(bits[i]) * factor


@compiled("void", read("uint16"), written("float32"), "float32")
def bf16_add(bits: UInt16, out: Float32, factor: np.float32) -> None:
    """out += factor * bf16."""
    for i in range(out.size):
        out[i] += widened(bits[i]) * factor


@compiled("void", read("float32"), written("uint8"))
def int8_write(values: Float32, out: UInt8) -> None:
    """Write blocks of ``values``; a scale is as ``blocks.quantised`` has it."""
    at = 0
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK]
        into = out[at : at + _SCALE_BYTES + block.size]
        at += _BLOCK_BYTES
        peak = peak_of(block)
        if peak < _INFINITE:
            block_write(block, peak, into)
            continue
        for i in range(_SCALE_BYTES):
            into[i] = (_NAN >> np.uint32(8 * i)) & _BYTE
        for i in range(block.size):
            into[_SCALE_BYTES + i] = 1


@compiled("int64", read("uint8"), written("float32"))
def int8_read(data: UInt8, out: Float32) -> int:
    """Read blocks into ``out``; anything may be in it where the result is not ``FINE``."""
    at = 0
    for start in range(0, out.size, _BLOCK):
        found = block_read(data[at:], out[start : start + _BLOCK])
        if found != FINE:
            return found
        at += _BLOCK_BYTES
    return FINE


@compiled("float64", read("uint8"), "int64", is_sum=True)
def int8_square_sum(data: UInt8, elements: int) -> float:
    """Sum of squares of blocks, in float64; less than 0, and which, if one is not ``FINE``."""
    room = np.empty(_BLOCK, np.float32)
    total, at = 0.0, 0
    for start in range(0, elements, _BLOCK):
        block = room[: min(_BLOCK, elements - start)]
        found = block_read(data[at:], block)
        if found != FINE:
            return -float(found)
        for i in range(block.size):
            total += np.float64(block[i]) * np.float64(block[i])
        at += _BLOCK_BYTES
    return total


@compiled("int64", read("uint8"), written("float32"), "float32")
def int8_scale(data: UInt8, out: Float32, factor: np.float32) -> int:
    """out = factor * blocks; as ``int8_read``."""
    at = 0
    for start in range(0, out.size, _BLOCK):
        into = out[start : start + _BLOCK]
        found = block_read(data[at:], into)
        if found != FINE:
            return found
        for i in range(into.size):
            into[i] *= factor
        at += _BLOCK_BYTES
    return FINE


@compiled("int64", read("uint8"), written("float32"), "float32")
def int8_add(data: UInt8, out: Float32, factor: np.float32) -> int:
    """out += factor * blocks; as ``int8_read``."""
    room = np.empty(_BLOCK, np.float32)
    at = 0
    for start in range(0, out.size, _BLOCK):
        into = out[start : start + _BLOCK]
        block = room[: into.size]
        found = block_read(data[at:], block)
        if found != FINE:
            return found
        for i in range(into.size):
            into[i] += block[i] * factor
        at += _BLOCK_BYTES
    return FINE


@compiled("boolean", written("uint16"), read("float32"), written("uint8"))
def int8_advance(held: UInt16, values: Float32, out: UInt8) -> bool:
    """Write ``values`` less ``held`` as blocks, and add to ``held`` what those decode to.

    False, and ``held`` and ``out`` are undefined, if something on the way is not finite.
    """
    room = np.empty(_BLOCK, np.float32)
    at = 0
    for start in range(0, values.size, _BLOCK):
        of_held, of_values = held[start : start + _BLOCK], values[start : start + _BLOCK]
        change = room[: of_values.size]
        into = out[at : at + _SCALE_BYTES + change.size]
        at += _BLOCK_BYTES
        for i in range(change.size):
            change[i] = of_values[i] - widened(of_held[i])
        peak = peak_of(change)
        if peak >= _INFINITE:
            return False
        block_write(change, peak, into)
        block_read(into, change)
        for i in range(change.size):
            change[i] += widened(of_held[i])
        for i in range(change.size):
            of_held[i] = rounded(change[i])
        largest = _NONE
        for i in range(change.size):
            largest = max(largest, np.uint32(of_held[i]) << _16 & _MAGNITUDE)
        if largest >= _INFINITE:
            return False
    return True


@compiled("int64", read("uint8"), read("uint16"), written("uint16"))
def int8_follow(data: UInt8, held: UInt16, out: UInt16) -> int:
    """Add to ``held`` what blocks decode to, rounded to bf16; as ``int8_read``."""
    room = np.empty(_BLOCK, np.float32)
    at = 0
    for start in range(0, out.size, _BLOCK):
        of_held, into = held[start : start + _BLOCK], out[start : start + _BLOCK]
        block = room[: into.size]
        found = block_read(data[at:], block)
        if found != FINE:
            return found
        for i in range(into.size):
            into[i] = rounded(block[i] + widened(of_held[i]))
        at += _BLOCK_BYTES
    return FINE
