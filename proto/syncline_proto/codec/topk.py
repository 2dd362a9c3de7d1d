"""topk: of each block of 4,096 elements the 64 largest by magnitude, in two bits; the rest is 0.

    two magnitudes, small and large, in bf16; the indices, ascending, 12 bits each; then a code
    each: bit 0 takes the large magnitude, bit 1 the negative sign

A shorter last block of n elements keeps ceil(n / 64). docs/protocol.md has the format with an
example. Source: SparseLoCo (arXiv 2508.15706), with chunks, counts and index bits as there.
Differs: two magnitudes and a sign instead of a table of four values, so nothing kept is turned
round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from syncline_proto.codec.base import Float32, UInt8, UInt16, bf16_bits, bf16_values
from syncline_proto.codec.blocks import Blocks, check_scales
from syncline_proto.errors import InvalidRequest

ONE_IN = 64
"""Elements, of which one is kept."""

Mask: TypeAlias = npt.NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)

_BF16_MAX = np.uint16(0x7F7F)
_BF16_NAN = np.uint16(0x7FC0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(Blocks):
    """About 0.23 bits an element; what it leaves out is for error feedback to send later."""

    grain: int = 4096
    block: int = 4096
    piece: int = 1 << 18
    """As much as the third-level cache holds: what is kept is little, and worth doing at once."""
    seam: int = 7
    with_feedback: bool = True

    def block_size(self, elements: int) -> int:
        kept = kept_of(elements)
        return _codes_at(kept) + (kept + 3) // 4 if kept else 0

    def _write_rows(self, rows: Float32, out: UInt8) -> None:
        kept = kept_of(rows.shape[1])
        places = np.flatnonzero(largest(rows, kept)).reshape(-1, kept)
        values = rows.reshape(-1)[places]
        magnitudes, upper = two_magnitudes(np.abs(values))
        codes = upper | (values < 0.0) << np.uint8(1)
        lost = ~np.isfinite(values).all(axis=1)
        magnitudes[lost], codes[lost] = _BF16_NAN, 0
        codes_at = _codes_at(kept)
        out[:, :4] = magnitudes.view(np.uint8)
        out[:, 4:codes_at] = packed_12(places % rows.shape[1])[:, : codes_at - 4]
        out[:, codes_at:] = packed_2(codes)

    def _read_rows(self, data: UInt8, out: Float32) -> None:
        kept = kept_of(out.shape[1])
        magnitudes = np.empty((len(data), 2), np.float32)
        bf16_values(np.ascontiguousarray(data[:, :4]).view(np.uint16), magnitudes)
        check_scales(magnitudes)
        codes_at = _codes_at(kept)
        indices, codes = unpacked_12(data[:, 4:codes_at]), unpacked_2(data[:, codes_at:])
        if indices[:, kept:].any() or codes[:, kept:].any():
            raise InvalidRequest("chunk.data: bits after the last index or code are not 0.")
        indices, codes = indices[:, :kept], codes[:, :kept]
        if (indices[:, 1:] <= indices[:, :-1]).any():
            raise InvalidRequest("chunk.data: the indices of a block are not ascending.")
        if (indices[:, -1] >= out.shape[1]).any():
            raise InvalidRequest(
                f"chunk.data: an index is not below {out.shape[1]}, its block's elements."
            )
        values = np.where(codes & 1, magnitudes[:, 1:], magnitudes[:, :1])
        np.negative(values, out=values, where=codes >= 2)
        out[...] = 0.0
        np.put_along_axis(out, indices.astype(np.intp), values, axis=1)


def kept_of(elements: int) -> int:
    """How many of a block's elements are kept."""
    return -(-elements // ONE_IN)


def _codes_at(kept: int) -> int:
    """Where in a block the codes begin: after two magnitudes of 2 bytes, and the indices."""
    return 4 + (3 * kept + 1) // 2


def largest(rows: Float32, kept: int) -> Mask:
    """Mark the ``kept`` elements of each row that are largest by magnitude, the first of equals.

    NaN counts as larger than all numbers. ``rows`` is fp32 [k, n].
    """
    # Without its sign bit a number's bits are ordered as it is. Negated, the largest come first:
    # np.partition is as fast on many equals, of which zeros at the end are the usual case.
    keys = rows.view(np.int32) & np.int32(0x7FFFFFFF)
    np.negative(keys, out=keys)
    last = np.partition(keys, kept - 1, axis=1)[:, kept - 1 : kept]
    marks = keys <= last
    if np.count_nonzero(marks) > kept * len(rows):
        tied = np.flatnonzero(np.count_nonzero(marks, axis=1) > kept)
        before, equal = keys[tied] < last[tied], keys[tied] == last[tied]
        room = kept - np.count_nonzero(before, axis=1, keepdims=True)
        marks[tied] = before | (equal & (np.cumsum(equal, axis=1, dtype=np.int16) <= room))
    return marks


def two_magnitudes(kept: Float32) -> tuple[UInt16, UInt8]:
    """Return the small and the large magnitude that stand for fp32 [k, n], and who has which.

    bf16 [k, 2], and uint8 [k, n] with 1 for the large one. They are the means of those up to the
    mean and of those over it: not the best cut, but each part's best value, so the squared error
    is never more than without sending anything. Sums are in float64, where they are exact enough.
    """
    wide = kept.astype(np.float64)
    upper = wide > wide.mean(axis=1, keepdims=True)
    count = np.count_nonzero(upper, axis=1)
    high = np.sum(wide, axis=1, where=upper)
    low = np.sum(wide, axis=1, where=~upper) / (kept.shape[1] - count)
    means = np.empty((len(kept), 2), np.float32)
    means[:, 0] = low
    means[:, 1] = np.where(count > 0, high / np.maximum(count, 1), low)
    bits = np.empty(means.shape, np.uint16)
    bf16_bits(means, bits)
    return np.minimum(bits, _BF16_MAX), upper.view(np.uint8)


def packed_12(indices: npt.NDArray[np.integer]) -> UInt8:
    """Indices [k, n] of 12 bits as bytes, two in three; one more byte than needed if n is odd."""
    pairs = _padded(indices.astype(np.uint32), 2)
    both = pairs[:, 0::2] | pairs[:, 1::2] << np.uint32(12)
    return both.view(np.uint8).reshape(len(both), -1, 4)[:, :, :3].reshape(len(both), -1)


def unpacked_12(data: UInt8) -> UInt16:
    """The indices of whole bytes, uint16 [k, n]; padding comes as one more index."""
    three = _padded(data, 3).astype(np.uint16).reshape(len(data), -1, 3)
    both = np.empty((*three.shape[:2], 2), np.uint16)
    both[:, :, 0] = three[:, :, 0] | (three[:, :, 1] & 0xF) << np.uint16(8)
    both[:, :, 1] = three[:, :, 1] >> np.uint16(4) | three[:, :, 2] << np.uint16(4)
    return both.reshape(len(data), -1)


def packed_2(codes: UInt8) -> UInt8:
    """Codes [k, n] of two bits as bytes, four in each."""
    four = _padded(codes, 4).reshape(len(codes), -1, 4) << np.array([0, 2, 4, 6], np.uint8)
    return np.bitwise_or.reduce(four, axis=2)


def unpacked_2(data: UInt8) -> UInt8:
    """The codes of whole bytes, uint8 [k, 4 n]; padding comes as more codes."""
    four = data[:, :, None] >> np.array([0, 2, 4, 6], np.uint8)
    return (four & np.uint8(3)).reshape(len(data), -1)


def _padded(rows: npt.NDArray[T], multiple: int) -> npt.NDArray[T]:
    """Rows [k, n] with zeros up to a multiple of so many columns."""
    more = -rows.shape[1] % multiple
    return np.pad(rows, ((0, 0), (0, more))) if more else rows
