"""Codecs that write each element by itself: fp32 to the bit, bf16 rounded to nearest even."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from syncline_proto.codec import loops
from syncline_proto.codec.base import Codec, Float32, UInt8, bf16_bits, bf16_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain(Codec):
    """A codec of ``width`` bytes an element."""

    width: int

    def size(self, elements: int) -> int:
        return elements * self.width

    def elements(self, size: int) -> int | None:
        count, rest = divmod(size, self.width)
        return None if rest else count


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp32(Plain):
    """4 bytes an element, as it is."""

    width: int = 4

    def encode(self, values: Float32) -> memoryview:
        return values.data.cast("B")

    def _read(self, data: UInt8, out: Float32) -> None:
        out[:] = data.view(np.float32)

    def _square_sum(self, data: UInt8, elements: int) -> float:
        return loops.square_sum(data.view(np.float32))

    def _scale(self, data: UInt8, out: Float32, factor: np.float32) -> None:
        loops.scale(data.view(np.float32), out, factor)

    def _add(self, data: UInt8, out: Float32, factor: np.float32) -> None:
        loops.add(data.view(np.float32), out, factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bf16(Plain):
    """2 bytes an element: its upper half, rounded. NaN stays NaN (quiet), infinities stay."""

    width: int = 2

    def encode(self, values: Float32) -> memoryview:
        out = np.empty(values.size, np.uint16)
        bf16_bits(values, out)
        return out.data.cast("B")

    def _read(self, data: UInt8, out: Float32) -> None:
        bf16_values(data.view(np.uint16), out)

    def _square_sum(self, data: UInt8, elements: int) -> float:
        return loops.bf16_square_sum(data.view(np.uint16))

    def _scale(self, data: UInt8, out: Float32, factor: np.float32) -> None:
        loops.bf16_scale(data.view(np.uint16), out, factor)

    def _add(self, data: UInt8, out: Float32, factor: np.float32) -> None:
        loops.bf16_add(data.view(np.uint16), out, factor)
