"""What a codec is: a small frozen object that writes fp32 values as bytes and reads them back.

A payload is a plain sequence of blocks. So it may be cut wherever a block ends, and the pieces
decode alone; and two payloads, one after the other, are a payload if the first has whole blocks.

Pure: numpy arrays in, numpy arrays out, always fp32 on the inside and little-endian on the wire.
Inner loops are in ``loops`` and ``int8_loops``, or work in cache-sized pieces, since memory is
slower than arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from syncline_proto.codec import loops
from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
UInt8: TypeAlias = npt.NDArray[np.uint8]
UInt16: TypeAlias = npt.NDArray[np.uint16]
Bytes: TypeAlias = bytes | memoryview

PIECE = 1 << 15
"""Elements worked on at a time: they, what comes of them and what they become fit into the
second-level cache. A multiple of every block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec(ABC):
    """One way to write fp32 values.

    Invariants:
        ``size`` grows with the elements, and is 0 for none.
        Encoding whole gives the same bytes as encoding pieces of a multiple of ``grain``.
        Decoding writes every element of ``out``, or raises; never anything else.
        What is not finite decodes to something that is not finite.
    """

    number: pb.Codec.ValueType
    name: str
    block: int = 1
    """Elements that are written together: a payload may be cut wherever a block ends."""
    grain: int = 1024
    """Every chunk but a payload's last holds a multiple of this many elements."""
    seam: int = 0
    """Bytes that a payload may grow by, at most, for each place where it is cut in two."""
    with_feedback: bool = False
    """What it loses is too much to lose: the sender keeps it, and adds it to what it sends next."""
    is_light: bool = False
    """``copy`` takes little longer than to copy."""

    @abstractmethod
    def size(self, elements: int) -> int:
        """Bytes of a payload of so many elements."""

    @abstractmethod
    def elements(self, size: int) -> int | None:
        """The most elements that a payload of ``size`` bytes holds; None: none has this size.

        Where a last block is padded to whole bytes it may hold fewer.
        """

    def encode(self, values: Float32) -> memoryview:
        """Write ``values`` (fp32, flat, contiguous); fp32 itself is a view, not a copy."""
        out = np.empty(self.size(values.size), np.uint8)
        self._write(values, out)
        return out.data

    def encode_into(self, values: Float32, out: UInt8) -> None:
        """Write ``values`` as ``encode`` does, into ``out``: uint8, exactly as many bytes."""
        assert out.size == self.size(values.size), "out is of another size"
        self._write(values, out)

    def encode_less(
        self, before: Float32, filled: int, anchor: UInt16, values: Float32, out: UInt8
    ) -> int | None:
        """Write ``before[:filled]`` and then anchor - values, if this codec does so in one pass.

        ``anchor`` is bf16, as its bits. At most ``block`` - 1 elements are over, which fill no
        block: they go to the start of ``before``, and how many is returned. ``out`` is as long as
        what is written. None: nothing is.
        """
        return None

    def decode_into(self, data: Bytes, out: Float32) -> None:
        """Read ``data`` into ``out`` (fp32, flat, contiguous, exactly as many elements).

        Raises:
            InvalidRequest: the sizes do not agree, or no encoder writes such bytes; ``out`` is
                undefined then.
        """
        self._read(self._bytes(data, out.size), out)

    def copy(self, data: Bytes, into: UInt8, elements: int) -> float:
        """Copy ``data``; the sum of squares, in float64, of what it decodes to.

        That is not finite if a value is not. ``into`` is as long as ``data``.

        Raises:
            InvalidRequest: as for ``decode_into``; ``into`` is undefined then.
        """
        return self._copy(self._bytes(data, elements), into, elements)

    def scale(self, data: Bytes, out: Float32, factor: np.float32) -> None:
        """out = factor * D, in fp32; D is what ``data`` decodes to, as in ``decode_into``."""
        self._scale(self._bytes(data, out.size), out, factor)

    def add(self, data: Bytes, out: Float32, factor: np.float32) -> None:
        """out += factor * D, in fp32: the product is rounded, then the sum. As ``scale``."""
        self._add(self._bytes(data, out.size), out, factor)

    def scale_both(self, data: Bytes, other: Bytes, out: Float32, factors: Float32) -> None:
        """out = rescale * (factor * D) + other_factor * E, in fp32; E is what ``other`` decodes to.

        ``factors`` are fp32 [3]: factor, rescale and other_factor. Bit for bit what ``scale``, a
        product with rescale and ``add`` leave, but gone through once where a codec can.
        """
        read, others = self._bytes(data, out.size), self._bytes(other, out.size)
        self._scale_both(read, others, out, factors)

    def pieces(self, data: Bytes, elements: int) -> Iterator[Float32]:
        """What ``data`` decodes to, piece by piece; each is for reading, until the next.

        What a small payload decodes to is so never in memory as a whole.

        Raises:
            InvalidRequest: as for ``decode_into``.
        """
        read, room = self._bytes(data, elements), np.empty(min(elements, PIECE), np.float32)
        for start in range(0, elements, PIECE):
            piece = room[: elements - start]
            self._read(read[self.size(start) : self.size(start + piece.size)], piece)
            yield piece

    @abstractmethod
    def _write(self, values: Float32, out: UInt8) -> None:
        """Encode; the sizes agree."""

    @abstractmethod
    def _read(self, data: UInt8, out: Float32) -> None:
        """Decode; the sizes agree."""

    def _copy(self, data: UInt8, into: UInt8, elements: int) -> float:
        into[:] = data
        return self._square_sum(into, elements)

    def _square_sum(self, data: UInt8, elements: int) -> float:
        return sum(map(loops.square_sum, self.pieces(data.data, elements)))

    def _scale(self, data: UInt8, out: Float32, factor: np.float32) -> None:
        self._read(data, out)
        loops.scale(out, out, factor)

    def _add(self, data: UInt8, out: Float32, factor: np.float32) -> None:
        at = 0
        for piece in self.pieces(data.data, out.size):
            loops.add(piece, out[at : at + piece.size], factor)
            at += piece.size

    def _scale_both(self, data: UInt8, other: UInt8, out: Float32, factors: Float32) -> None:
        factor, rescale, other_factor = factors
        self._scale(data, out, factor)
        if rescale != 1.0:
            out *= rescale
        self._add(other, out, other_factor)

    def _bytes(self, data: Bytes, elements: int) -> UInt8:
        """A payload of so many elements, as uint8 [size(elements)].

        Raises:
            InvalidRequest: they do not hold so many elements.
        """
        if len(data) != self.size(elements):
            raise InvalidRequest(
                f"chunk.data: {len(data)} bytes do not hold {elements} elements in {self.name}."
            )
        return np.frombuffer(data, np.uint8)


def bf16_bits(values: Float32, out: UInt16) -> None:
    """Round fp32 to bf16, to nearest even, as its bits; NaN stays NaN (quiet). Both contiguous."""
    loops.bf16_bits(values.reshape(-1), out.reshape(-1))


def bf16_values(bits: UInt16, out: Float32) -> None:
    """The fp32 values of bf16 bits. Both contiguous."""
    loops.bf16_values(bits.reshape(-1), out.reshape(-1))


def square_sum(values: Float32) -> float:
    """Sum of squares of fp32 [n], in float64; NaN and inf pass through."""
    return loops.square_sum(values)
