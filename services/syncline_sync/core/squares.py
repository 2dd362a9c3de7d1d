"""The sum of squares of a vector that is written from its start on.

What has just been written is in the processor's cache still: to take its squares then costs half of
what it costs to go through memory once more. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from syncline_proto.codec import Float32, square_sum

SQUARES_PIECE = 1 << 17
"""Elements whose squares are taken at a time: with what they are made of they fit into the
second-level cache."""


@dataclass(slots=True)
class Squares:
    """Of a flat fp32 vector, in float64, as far as it was taken.

    It is taken of the same pieces in the same order, however often one asks in between: so what it
    comes to is the same bit for bit.
    """

    _total: float = 0.0
    _taken: int = 0

    def take(self, values: Float32, end: int) -> None:
        """Take what is whole pieces of the first ``end`` values, which will not change."""
        for at in range(self._taken, end - SQUARES_PIECE + 1, SQUARES_PIECE):
            self.add(values[at : at + SQUARES_PIECE])

    def add(self, piece: Float32) -> None:
        """Take the next ``SQUARES_PIECE`` values."""
        self._total += square_sum(piece)
        self._taken += piece.size

    def of(self, values: Float32) -> float:
        """Of all of them; NaN and inf pass through."""
        self.take(values, values.size)
        return self.total_with(values[self._taken :])

    def total_with(self, rest: Float32) -> float:
        """Of what was taken and these, the last; nothing is taken."""
        return self._total + square_sum(rest)
