"""int8 and int4: blocks of small integers under one scale, written before them.

    int8   256 elements: the scale in fp32, then a byte each, -127 to 127
    int4    32 elements: the scale in bf16, then four bits each, -7 to 7, low nibble first

An element is scale * integer in fp32. docs/protocol.md has the formats with examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from syncline_proto.codec import int8_loops
from syncline_proto.codec.base import Codec, Float32, UInt8, UInt16, bf16_values
from syncline_proto.codec.blocks import SCALE_MIN, SCALE_REFUSED, Blocks, check_scales
from syncline_proto.errors import InvalidRequest

_LEVELS, _SCALE_BITS = np.float32(7.0), np.uint32(0xFFFF0000)

_SIGNED = np.arange(16, dtype=np.float32)
_SIGNED[8:] -= 16
_PAIRS = np.stack([np.tile(_SIGNED, 16), np.repeat(_SIGNED, 16)], axis=1).view(np.complex64)[:, 0]
"""The two elements of each byte, low nibble first, as if they were one number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8(Codec):
    """About 8.1 bits an element; off by half a scale at most, a 254th of its block's largest."""

    block: int = int8_loops.BLOCK
    seam: int = int8_loops.SCALE_BYTES
    is_light: bool = True

    def size(self, elements: int) -> int:
        return elements + self.seam * -(-elements // self.block)

    def elements(self, size: int) -> int | None:
        full, rest = divmod(size, self.seam + self.block)
        if rest and rest <= self.seam:
            return None
        return full * self.block + max(0, rest - self.seam)

    def _write(self, values: Float32, out: UInt8) -> None:
        # 17 bits of the scale and 7 of the integer are the 24 of an fp32.
        int8_loops.encode(values, out)

    def encode_less(
        self, before: Float32, filled: int, anchor: UInt16, values: Float32, out: UInt8
    ) -> int:
        return int8_loops.encode_less(before, filled, anchor, values, out)

    def _read(self, data: UInt8, out: Float32) -> None:
        self._scale(data, out, np.float32(1.0))

    def _copy(self, data: UInt8, into: UInt8, elements: int) -> float:
        total = int8_loops.copy(data, into, elements)
        check_int8(int(-total) if total < 0 else int8_loops.FINE)
        return total

    def _scale(self, data: UInt8, out: Float32, factor: np.float32) -> None:
        check_int8(int8_loops.scale_into(data, out, factor))

    def _add(self, data: UInt8, out: Float32, factor: np.float32) -> None:
        check_int8(int8_loops.add(data, out, factor))

    def _scale_both(self, data: UInt8, other: UInt8, out: Float32, factors: Float32) -> None:
        check_int8(int8_loops.scale_both(data, other, out, factors))


def check_int8(found: int) -> None:
    """Check what a loop over int8 came to.

    Raises:
        InvalidRequest: no encoder writes such blocks.
    """
    if found == int8_loops.BAD_SCALE:
        raise InvalidRequest(SCALE_REFUSED)
    if found == int8_loops.BAD_INTEGER:
        raise InvalidRequest("chunk.data: an int8 is -128; they are -127 to 127.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4(Blocks):
    """4.5 bits an element; off by half a scale at most, a 14th of its block's largest."""

    block: int = 32
    seam: int = 3
    with_feedback: bool = True

    def block_size(self, elements: int) -> int:
        return 2 + (elements + 1) // 2 if elements else 0

    def _write_rows(self, rows: Float32, out: UInt8) -> None:
        # Rows are too short to go through one by one: the largest is sought column by column.
        peaks = np.abs(np.ascontiguousarray(rows.T)).max(axis=0)
        scales, whole = _quantised(rows, peaks)
        out[:, :2] = scales.view(np.uint8).reshape(-1, 4)[:, 2:]
        bytes_each = np.zeros((len(rows), 2 * (out.shape[1] - 2)), np.int8)
        np.copyto(bytes_each[:, : rows.shape[1]], whole, casting="unsafe")
        pairs = bytes_each.view(np.uint16)
        high = (pairs >> 4) & np.uint16(0xF0)
        pairs &= np.uint16(0x0F)
        pairs |= high
        np.copyto(out[:, 2:], pairs, casting="unsafe")

    def _read_rows(self, data: UInt8, out: Float32) -> None:
        scales = np.empty((len(data), 1), np.float32)
        bf16_values(np.ascontiguousarray(data[:, :2]).view(np.uint16), scales)
        check_scales(scales)
        nibbles = np.ascontiguousarray(data[:, 2:])
        # A byte has a zero nibble if this keeps a bit; here of the bytes with each 8 turned to 0.
        turned = nibbles ^ np.uint8(0x88)
        if ((turned - np.uint8(0x11)) & ~turned & np.uint8(0x88)).any():
            raise InvalidRequest("chunk.data: an int4 is -8; they are -7 to 7.")
        if out.shape[1] % 2:
            if (nibbles[:, -1] >> 4).any():
                raise InvalidRequest("chunk.data: the nibble after the last int4 is not 0.")
            out[...] = _PAIRS[nibbles].view(np.float32)[:, :-1]
        else:
            np.take(_PAIRS, nibbles, out=out.view(np.complex64), mode="clip")
        out *= scales


def _quantised(rows: Float32, peaks: Float32) -> tuple[Float32, Float32]:
    """Return the scales [k] of fp32 [k, n] and its values over them, rounded: [k, n].

    ``peaks`` [k] are the largest magnitudes, not finite if a value is not. The values are
    integers, -7 to 7. A scale is peak / 7 without the lower half of fp32's bits, so that

    - scale times integer is exact in fp32, and never over the peak: nothing overflows;
    - the peak is still nearest to 7, as the scale is at most 1 % smaller. So what was decoded has
      the same scale again, and encodes to the same bytes.

    A block of zeros has scale 0; one with a value that is not finite has scale NaN and ones. No
    other scale is under ``SCALE_MIN``.
    """
    scales = peaks / _LEVELS
    scales.view(np.uint32)[:] &= _SCALE_BITS
    np.maximum(scales, SCALE_MIN, out=scales)
    wide = np.repeat(np.float32(1.0) / scales, rows.shape[1]).reshape(rows.shape)
    wide *= rows
    np.rint(wide, out=wide)
    scales[peaks == 0.0] = 0.0
    lost = ~np.isfinite(peaks)
    if lost.any():
        scales[lost] = np.nan
        wide[lost] = 1.0
    return scales, wide
