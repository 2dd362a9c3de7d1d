"""What codecs of blocks share: where blocks lie in a payload, and what a scale may be.

All full blocks of a payload are records of equal length, so many of them are worked on at once,
as the rows of an array; the shorter last one is an array of one row.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from syncline_proto.codec.base import PIECE, Codec, Float32, UInt8
from syncline_proto.errors import InvalidRequest

SCALE_MIN = np.float32(2.0**-126)
"""The least scale that is not 0, fp32's smallest normal: its reciprocal is finite."""

SCALE_REFUSED = "chunk.data: a scale is negative or infinite; it may be NaN."


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks(Codec):
    """A codec that writes ``block`` elements together."""

    piece: int = PIECE
    """Elements worked on at a time, whole blocks."""

    @abstractmethod
    def block_size(self, elements: int) -> int:
        """Bytes of one block of 0 to ``block`` elements; does not shrink as they grow."""

    @abstractmethod
    def _write_rows(self, rows: Float32, out: UInt8) -> None:
        """Encode fp32 [k, elements] into bytes [k, block_size(elements)]."""

    @abstractmethod
    def _read_rows(self, data: UInt8, out: Float32) -> None:
        """Decode bytes [k, block_size(elements)] into fp32 [k, elements].

        Raises:
            InvalidRequest: no encoder writes such a block.
        """

    def size(self, elements: int) -> int:
        full, rest = divmod(elements, self.block)
        return full * self.block_size(self.block) + self.block_size(rest)

    def elements(self, size: int) -> int | None:
        full, rest = divmod(size, self.block_size(self.block))
        last = bisect_right(range(self.block), rest, key=self.block_size) - 1
        return full * self.block + last if self.block_size(last) == rest else None

    def _write(self, values: Float32, out: UInt8) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is dealt with
            for start in range(0, values.size, self.piece):
                piece = values[start : start + self.piece]
                at = self.size(start)
                for rows in self._rows(piece):
                    size = self.block_size(rows.shape[1])
                    self._write_rows(rows, out[at : at + size * len(rows)].reshape(-1, size))
                    at += size * len(rows)

    def _read(self, data: UInt8, out: Float32) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # so is what a stranger may send
            for start in range(0, out.size, self.piece):
                piece = out[start : start + self.piece]
                at = self.size(start)
                for rows in self._rows(piece):
                    size = self.block_size(rows.shape[1])
                    self._read_rows(data[at : at + size * len(rows)].reshape(-1, size), rows)
                    at += size * len(rows)

    def _rows(self, piece: Float32) -> list[Float32]:
        """The full blocks of a piece as rows, and the shorter last one as one more array."""
        whole = piece.size // self.block * self.block
        parts = (piece[:whole].reshape(-1, self.block), piece[whole:].reshape(1, -1))
        return [rows for rows in parts if rows.size]


def check_scales(scales: Float32) -> None:
    """Check scales or magnitudes, fp32 of any shape.

    Raises:
        InvalidRequest: one is negative or infinite.
    """
    bits: npt.NDArray[np.uint32] = np.ascontiguousarray(scales).view(np.uint32)
    if ((bits >= 0x7F800000) & ~np.isnan(scales)).any():
        raise InvalidRequest(SCALE_REFUSED)
