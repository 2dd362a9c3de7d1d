"""The codecs' inner loops, over flat arrays; what they mean, the codecs say.

bf16 is given as its bits, and fp32 where bits are what is worked on. Lengths are not checked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from syncline_proto.compiled import compiled, read, written

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
_UPPER, _HALF, _ONE, _16 = np.uint32(0xFFFF0000), np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
_SCALE_BITS, _SCALE_MIN = np.uint32(0xFFFFFF80), np.uint32(0x00800000)
_NONE, _BYTE = np.uint32(0), np.uint32(0xFF)


@compiled("void", read("uint32"), written("uint16"))
def bf16_bits(values: UInt32, out: UInt16) -> None:
    """Round fp32 to bf16, to nearest even; NaN stays NaN (quiet)."""
    for i in range(out.size):
        bits = values[i]
        if bits & _MAGNITUDE > _INFINITE:
            out[i] = (bits | _QUIET) >> _16
        else:
            out[i] = (bits + _HALF + ((bits >> _16) & _ONE)) >> _16


@compiled("void", read("uint16"), written("uint32"))
def bf16_values(bits: UInt16, out: UInt32) -> None:
    """The fp32 values of bf16."""
    for i in range(out.size):
        out[i] = np.uint32(bits[i]) << _16


@compiled("void", read("float32"), written("uint8"))
def int8_write(values: Float32, out: UInt8) -> None:
    """Write blocks of ``values``; a scale is as ``blocks.quantised`` has it."""
    bits, integers = values.view(np.uint32), out.view(np.int8)
    word = np.empty(1, np.uint32)
    number = word.view(np.float32)
    for block in range((values.size + _BLOCK - 1) // _BLOCK):
        start, at = block * _BLOCK, block * _BLOCK_BYTES
        count = min(_BLOCK, values.size - start)
        of_bits, of_values = bits[start : start + count], values[start : start + count]
        into = integers[at + _SCALE_BYTES : at + _SCALE_BYTES + count]
        peak = _NONE
        for i in range(count):
            peak = max(peak, of_bits[i] & _MAGNITUDE)
        scale = _NONE
        if peak >= _INFINITE:
            scale = _NAN
        elif peak > _NONE:
            word[0] = peak
            number[0] = number[0] / _LEVELS
            scale = max(word[0] & _SCALE_BITS, _SCALE_MIN)
        for i in range(_SCALE_BYTES):
            out[at + i] = (scale >> np.uint32(8 * i)) & _BYTE
        if scale == _NAN:
            for i in range(count):
                into[i] = 1
        else:
            word[0] = max(scale, _SCALE_MIN)
            inverse = np.float32(1.0) / number[0]
            for i in range(count):
                into[i] = np.int8(np.int32(np.rint(of_values[i] * inverse)))


@compiled("int64", read("uint8"), written("float32"))
def int8_read(data: UInt8, out: Float32) -> int:
    """Read blocks into ``out``; anything may be in it where the result is not ``FINE``."""
    integers = data.view(np.int8)
    word = np.empty(1, np.uint32)
    number = word.view(np.float32)
    least = np.int8(0)
    for block in range((out.size + _BLOCK - 1) // _BLOCK):
        start, at = block * _BLOCK, block * _BLOCK_BYTES
        count = min(_BLOCK, out.size - start)
        scale = _NONE
        for i in range(_SCALE_BYTES):
            scale |= np.uint32(data[at + i]) << np.uint32(8 * i)
        if scale >= _INFINITE and scale & _MAGNITUDE <= _INFINITE:
            return BAD_SCALE
        word[0] = scale
        factor = number[0]
        of_integers = integers[at + _SCALE_BYTES : at + _SCALE_BYTES + count]
        into = out[start : start + count]
        for i in range(count):
            least = min(least, of_integers[i])
        for i in range(count):
            into[i] = np.float32(of_integers[i]) * factor
    return BAD_INTEGER if least == -128 else FINE


@compiled("boolean", written("uint16"), read("float32"), written("uint8"))
def int8_advance(held: UInt16, values: Float32, out: UInt8) -> bool:
    """Write ``values`` less ``held`` as blocks, and add to ``held`` what those decode to.

    False, and ``held`` and ``out`` are undefined, if something on the way is not finite.
    """
    integers = out.view(np.int8)
    word = np.empty(1, np.uint32)
    number = word.view(np.float32)
    before_bits, change = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.float32)
    before, change_bits = before_bits.view(np.float32), change.view(np.uint32)
    for block in range((values.size + _BLOCK - 1) // _BLOCK):
        start, at = block * _BLOCK, block * _BLOCK_BYTES
        count = min(_BLOCK, values.size - start)
        of_held, of_values = held[start : start + count], values[start : start + count]
        into = integers[at + _SCALE_BYTES : at + _SCALE_BYTES + count]
        peak = _NONE
        for i in range(count):
            before_bits[i] = np.uint32(of_held[i]) << _16
        for i in range(count):
            change[i] = of_values[i] - before[i]
        for i in range(count):
            peak = max(peak, change_bits[i] & _MAGNITUDE)
        if peak >= _INFINITE:
            return False
        scale = _NONE
        if peak > _NONE:
            word[0] = peak
            number[0] = number[0] / _LEVELS
            scale = max(word[0] & _SCALE_BITS, _SCALE_MIN)
        for i in range(_SCALE_BYTES):
            out[at + i] = (scale >> np.uint32(8 * i)) & _BYTE
        word[0] = scale
        factor = number[0]
        word[0] = max(scale, _SCALE_MIN)
        inverse = np.float32(1.0) / number[0]
        for i in range(count):
            into[i] = np.int8(np.int32(np.rint(change[i] * inverse)))
        for i in range(count):
            change[i] = np.float32(into[i]) * factor + before[i]
        largest = _NONE
        for i in range(count):
            bits = (change_bits[i] + _HALF + ((change_bits[i] >> _16) & _ONE)) >> _16
            of_held[i] = bits
            largest = max(largest, (bits << _16) & _MAGNITUDE)
        if largest >= _INFINITE:
            return False
    return True


@compiled("int64", read("uint8"), read("uint16"), written("uint32"))
def int8_follow(data: UInt8, held: UInt16, out: UInt32) -> int:
    """Add to ``held`` what blocks decode to, rounded to bf16, as fp32; as ``int8_read``."""
    integers, sums = data.view(np.int8), out.view(np.float32)
    word = np.empty(1, np.uint32)
    number = word.view(np.float32)
    before_bits = np.empty(_BLOCK, np.uint32)
    before = before_bits.view(np.float32)
    least = np.int8(0)
    for block in range((out.size + _BLOCK - 1) // _BLOCK):
        start, at = block * _BLOCK, block * _BLOCK_BYTES
        count = min(_BLOCK, out.size - start)
        scale = _NONE
        for i in range(_SCALE_BYTES):
            scale |= np.uint32(data[at + i]) << np.uint32(8 * i)
        if scale >= _INFINITE and scale & _MAGNITUDE <= _INFINITE:
            return BAD_SCALE
        word[0] = scale
        factor = number[0]
        of_integers = integers[at + _SCALE_BYTES : at + _SCALE_BYTES + count]
        of_held, of_sums = held[start : start + count], sums[start : start + count]
        into = out[start : start + count]
        for i in range(count):
            least = min(least, of_integers[i])
        for i in range(count):
            before_bits[i] = np.uint32(of_held[i]) << _16
        for i in range(count):
            of_sums[i] = np.float32(of_integers[i]) * factor + before[i]
        for i in range(count):
            bits = into[i]
            if bits & _MAGNITUDE > _INFINITE:
                into[i] = (bits | _QUIET) & _UPPER
            else:
                into[i] = (bits + _HALF + ((bits >> _16) & _ONE)) & _UPPER
    return BAD_INTEGER if least == -128 else FINE
