"""The inner loops of plain codecs, and the bf16 that others share, over flat arrays.

What they mean, the codecs say. bf16 is given as its bits, and fp32 where bits are what is worked
on. Lengths are not checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from syncline_proto.compiled import compiled, fetch_to_read, fetch_to_write, inner, read, written

UInt8 = npt.NDArray[np.uint8]
UInt16 = npt.NDArray[np.uint16]
AnyArray = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

MAGNITUDE, INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
"""Of the bits of fp32: those without the sign, and infinity's."""

LINE_BYTES, AHEAD_BYTES = 64, 2048
"""A processor knows by itself what is read next, but not across a page, and not what is written.
Told of it this far ahead, two processors that share their memory need 7 to 17 % less for a loop."""

_ASKED = 256
"""Elements that are asked for at a time, where they come in no blocks. Of so many, known when a
loop is compiled, it does several at once; so each is written as what it does with a stretch."""

_QUIET = np.uint32(0x00400000)
_HALF, _ONE, _16 = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)


@inner
def soon_read(values: AnyArray, start: int, size: int) -> None:
    """Have the processor fetch what is read soon after ``size`` bytes from ``values[start]`` on."""
    for offset in range(AHEAD_BYTES, AHEAD_BYTES + size, LINE_BYTES):
        fetch_to_read(values, start, offset)


@inner
def soon_written(values: AnyArray, start: int, size: int) -> None:
    """As ``soon_read``, of what is written, or read and written."""
    for offset in range(AHEAD_BYTES, AHEAD_BYTES + size, LINE_BYTES):
        fetch_to_write(values, start, offset)


@inner
def widened(bits: np.uint16) -> np.float32:
    """The fp32 value of bf16."""
    return np.uint32(np.uint32(bits) << _16).view(np.float32)


@inner
def rounded(value: np.float32) -> np.uint16:
    """Round fp32 to bf16, to nearest even; NaN stays NaN (quiet)."""
    bits = np.float32(value).view(np.uint32)
    if bits & MAGNITUDE > INFINITE:
        return np.uint16((bits | _QUIET) >> _16)
    return rounded_number(value)


@inner
def rounded_number(value: np.float32) -> np.uint16:
    """As ``rounded``, of what is no NaN: that becomes anything."""
    bits = np.float32(value).view(np.uint32)
    return np.uint16((bits + _HALF + ((bits >> _16) & _ONE)) >> _16)


@inner
def _square_sum(values: Float32, start: int, count: int) -> float:
    total = 0.0
    for i in range(start, start + count):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@compiled("float64", read("float32"), is_sum=True)
def square_sum(values: Float32) -> float:
    """Sum of squares of fp32, in float64, which none overflows; NaN and inf pass through."""
    full, rest, total = values.size // _ASKED, values.size % _ASKED, 0.0
    for k in range(full):
        total += _square_sum(values, k * _ASKED, _ASKED)
    return total + _square_sum(values, full * _ASKED, rest)


@inner
def _copy(values: Float32, out: Float32, start: int, count: int) -> float:
    soon_written(out, start, 4 * count)
    for i in range(start, start + count):
        out[i] = values[i]
    return _square_sum(values, start, count)


@compiled("float64", read("float32"), written("float32"), is_sum=True)
def copy(values: Float32, out: Float32) -> float:
    """out = values; their ``square_sum``."""
    full, rest, total = out.size // _ASKED, out.size % _ASKED, 0.0
    for k in range(full):
        total += _copy(values, out, k * _ASKED, _ASKED)
    return total + _copy(values, out, full * _ASKED, rest)


@inner
def _scale(values: Float32, out: Float32, factor: np.float32, start: int, count: int) -> None:
    soon_written(out, start, 4 * count)
    for i in range(start, start + count):
        out[i] = values[i] * factor


@compiled("void", read("float32"), written("float32"), "float32")
def scale(values: Float32, out: Float32, factor: np.float32) -> None:
    """out = factor * values."""
    full, rest = out.size // _ASKED, out.size % _ASKED
    for k in range(full):
        _scale(values, out, factor, k * _ASKED, _ASKED)
    _scale(values, out, factor, full * _ASKED, rest)


@compiled("void", read("float32"), written("float32"), "float32")
def add(values: Float32, out: Float32, factor: np.float32) -> None:
    """out += factor * values."""
    for i in range(out.size):
        out[i] += values[i] * factor


@compiled("void", read("float32"), read("float32"), written("float32"), read("float32"))
def scale_both(values: Float32, others: Float32, out: Float32, factors: Float32) -> None:
    """out = rescale * (factor * values) + other_factor * others.

    ``factors`` are factor, rescale and other_factor.
    """
    factor, rescale, other_factor = factors[0], factors[1], factors[2]
    for i in range(out.size):
        out[i] = values[i] * factor * rescale + others[i] * other_factor


@inner
def _bf16_bits(values: Float32, out: UInt16, start: int, count: int) -> None:
    soon_read(values, start, 4 * count)
    soon_written(out, start, 2 * count)
    for i in range(start, start + count):
        out[i] = rounded(values[i])


@compiled("void", read("float32"), written("uint16"))
def bf16_bits(values: Float32, out: UInt16) -> None:
    """Round fp32 to bf16."""
    full, rest = out.size // _ASKED, out.size % _ASKED
    for k in range(full):
        _bf16_bits(values, out, k * _ASKED, _ASKED)
    _bf16_bits(values, out, full * _ASKED, rest)


@inner
def _bf16_less(anchor: UInt16, values: Float32, out: UInt16, start: int, count: int) -> None:
    soon_read(anchor, start, 2 * count)
    soon_read(values, start, 4 * count)
    soon_written(out, start, 2 * count)
    for i in range(start, start + count):
        out[i] = rounded(widened(anchor[i]) - values[i])


@compiled("void", read("uint16"), read("float32"), written("uint16"))
def bf16_less(anchor: UInt16, values: Float32, out: UInt16) -> None:
    """Round anchor - values to bf16; ``anchor`` is bf16."""
    full, rest = out.size // _ASKED, out.size % _ASKED
    for k in range(full):
        _bf16_less(anchor, values, out, k * _ASKED, _ASKED)
    _bf16_less(anchor, values, out, full * _ASKED, rest)


@inner
def _bf16_values(bits: UInt16, out: Float32, start: int, count: int) -> None:
    soon_read(bits, start, 2 * count)
    soon_written(out, start, 4 * count)
    for i in range(start, start + count):
        out[i] = widened(bits[i])


@compiled("void", read("uint16"), written("float32"))
def bf16_values(bits: UInt16, out: Float32) -> None:
    """The fp32 values of bf16."""
    full, rest = out.size // _ASKED, out.size % _ASKED
    for k in range(full):
        _bf16_values(bits, out, k * _ASKED, _ASKED)
    _bf16_values(bits, out, full * _ASKED, rest)


@inner
def _bf16_copy(bits: UInt16, out: UInt16, start: int, count: int) -> float:
    soon_written(out, start, 2 * count)
    total = 0.0
    for i in range(start, start + count):
        out[i] = bits[i]
        value = np.float64(widened(bits[i]))
        total += value * value
    return total


@compiled("float64", read("uint16"), written("uint16"), is_sum=True)
def bf16_copy(bits: UInt16, out: UInt16) -> float:
    """out = bits; their ``square_sum``."""
    full, rest, total = out.size // _ASKED, out.size % _ASKED, 0.0
    for k in range(full):
        total += _bf16_copy(bits, out, k * _ASKED, _ASKED)
    return total + _bf16_copy(bits, out, full * _ASKED, rest)


@inner
def _bf16_scale(bits: UInt16, out: Float32, factor: np.float32, start: int, count: int) -> None:
    soon_read(bits, start, 2 * count)
    soon_written(out, start, 4 * count)
    for i in range(start, start + count):
        out[i] = widened(bits[i]) * factor


@compiled("void", read("uint16"), written("float32"), "float32")
def bf16_scale(bits: UInt16, out: Float32, factor: np.float32) -> None:
    """out = factor * bf16."""
    full, rest = out.size // _ASKED, out.size % _ASKED
    for k in range(full):
        _bf16_scale(bits, out, factor, k * _ASKED, _ASKED)
    _bf16_scale(bits, out, factor, full * _ASKED, rest)


@inner
def _bf16_add(bits: UInt16, out: Float32, factor: np.float32, start: int, count: int) -> None:
    soon_read(bits, start, 2 * count)
    soon_written(out, start, 4 * count)
    for i in range(start, start + count):
        out[i] += widened(bits[i]) * factor


@compiled("void", read("uint16"), written("float32"), "float32")
def bf16_add(bits: UInt16, out: Float32, factor: np.float32) -> None:
    """out += factor * bf16."""
    full, rest = out.size // _ASKED, out.size % _ASKED
    for k in range(full):
        _bf16_add(bits, out, factor, k * _ASKED, _ASKED)
    _bf16_add(bits, out, factor, full * _ASKED, rest)


@inner
def _bf16_scale_both(
    bits: UInt16, others: UInt16, out: Float32, factors: Float32, start: int, count: int
) -> None:
    factor, rescale, other_factor = factors[0], factors[1], factors[2]
    soon_read(bits, start, 2 * count)
    soon_read(others, start, 2 * count)
    soon_written(out, start, 4 * count)
    for i in range(start, start + count):
        out[i] = widened(bits[i]) * factor * rescale + widened(others[i]) * other_factor


@compiled("void", read("uint16"), read("uint16"), written("float32"), read("float32"))
def bf16_scale_both(bits: UInt16, others: UInt16, out: Float32, factors: Float32) -> None:
    """``scale_both`` of bf16."""
    full, rest = out.size // _ASKED, out.size % _ASKED
    for k in range(full):
        _bf16_scale_both(bits, others, out, factors, k * _ASKED, _ASKED)
    _bf16_scale_both(bits, others, out, factors, full * _ASKED, rest)
