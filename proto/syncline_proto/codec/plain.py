"""Codecs that write each element by itself: fp32 to the bit, bf16 rounded to nearest even."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from syncline_proto.codec import loops
from syncline_proto.codec.base import Codec, Float32, UInt8, UInt16, bf16_bits, bf16_values


class _Raw(NamedTuple):
    """What is done with elements as they lie in a payload; as the methods of ``Codec``."""

    dtype: type[np.float32] | type[np.uint16]
    copy: Callable[[Any, Any], float]
    scale: Callable[[Any, Float32, np.float32], None]
    add: Callable[[Any, Float32, np.float32], None]
    scale_both: Callable[[Any, Any, Float32, Float32], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain(Codec):
    """A codec of ``width`` bytes an element."""

    width: int
    is_light: bool = True
    raw: ClassVar[_Raw]

    def size(self, elements: int) -> int:
        return elements * self.width

    def elements(self, size: int) -> int | None:
        count, rest = divmod(size, self.width)
        return None if rest else count

    def _copy(self, data: UInt8, into: UInt8, elements: int) -> float:
        return self.raw.copy(data.view(self.raw.dtype), into.view(self.raw.dtype))

    def _scale(self, data: UInt8, out: Float32, factor: np.float32) -> None:
        self.raw.scale(data.view(self.raw.dtype), out, factor)

    def _add(self, data: UInt8, out: Float32, factor: np.float32) -> None:
        self.raw.add(data.view(self.raw.dtype), out, factor)

    def _scale_both(self, data: UInt8, other: UInt8, out: Float32, factors: Float32) -> None:
        self.raw.scale_both(data.view(self.raw.dtype), other.view(self.raw.dtype), out, factors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp32(Plain):
    """4 bytes an element, as it is."""

    width: int = 4
    raw: ClassVar = _Raw(np.float32, loops.copy, loops.scale, loops.add, loops.scale_both)

    def encode(self, values: Float32) -> memoryview:
        return values.data.cast("B")

    def _write(self, values: Float32, out: UInt8) -> None:
        out.data[:] = values.data.cast("B")

    def _read(self, data: UInt8, out: Float32) -> None:
        out[:] = data.view(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bf16(Plain):
    """2 bytes an element: its upper half, rounded. NaN stays NaN (quiet), infinities stay."""

    width: int = 2
    raw: ClassVar = _Raw(
        np.uint16, loops.bf16_copy, loops.bf16_scale, loops.bf16_add, loops.bf16_scale_both
    )

    def _write(self, values: Float32, out: UInt8) -> None:
        bf16_bits(values, out.view(np.uint16))

    def encode_less(
        self, before: Float32, filled: int, anchor: UInt16, values: Float32, out: UInt8
    ) -> int:
        bits = out.view(np.uint16)
        bf16_bits(before[:filled], bits[:filled])
        loops.bf16_less(anchor, values, bits[filled:])
        return 0

    def _read(self, data: UInt8, out: Float32) -> None:
        bf16_values(data.view(np.uint16), out)
