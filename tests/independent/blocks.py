"""Payloads of int8, int4 and top-k, from docs/protocol.md section 7, block by block.

An encoder may take any scale: these take others than Syncline's own. Knows nothing of calls.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

INT8, INT4, TOPK = 3, 4, 5
ELEMENTS = {INT8: 256, INT4: 32, TOPK: 4096}
"""Of a block."""
GRAIN = {INT8: 1024, INT4: 1024, TOPK: 4096}


def encode(values: Array, codec: int) -> bytes:
    """fp32 [n], finite -> its blocks."""
    write = {INT8: _int8, INT4: _int4, TOPK: _topk}[codec]
    size = ELEMENTS[codec]
    return b"".join(write(values[at : at + size]) for at in range(0, values.size, size))


def decode(data: bytes, codec: int, count: int) -> Array:
    """Blocks of ``count`` elements -> fp32 [count]."""
    read = {INT8: _of_int8, INT4: _of_int4, TOPK: _of_topk}[codec]
    out, at = np.zeros(count, np.float32), 0
    for start in range(0, count, ELEMENTS[codec]):
        block = out[start : start + ELEMENTS[codec]]
        at += read(data[at:], block)
    assert at == len(data), f"{at} bytes of {len(data)}"
    return out


def full_chunk(codec: int, most: int) -> int:
    """Bytes of the longest chunk of whole grains that has ``most`` bytes at most."""
    n = GRAIN[codec]
    grain = len(encode(np.zeros(n, np.float32), codec))
    return most // grain * grain


def _int8(block: Array) -> bytes:
    scale = np.float32(_peak(block) / 127.0)
    return struct.pack("<f", scale) + _integers(block, scale, 127).astype("<i1").tobytes()


def _of_int8(data: bytes, out: Array) -> int:
    scale = np.float32(struct.unpack_from("<f", data)[0])
    out[:] = scale * np.frombuffer(data, "<i1", out.size, 4).astype(np.float32)
    return 4 + out.size


def _int4(block: Array) -> bytes:
    bits = _bf16_up(_peak(block) / 7.0)
    nibbles = [int(q) & 15 for q in _integers(block, _bf16(bits), 7)]
    return struct.pack("<H", bits) + _packed(nibbles, 4)


def _of_int4(data: bytes, out: Array) -> int:
    scale = _bf16(struct.unpack_from("<H", data)[0])
    nibbles = np.array(list(_unpacked(data[2:], 4, out.size)), np.int64)
    out[:] = scale * (nibbles - 16 * (nibbles > 7)).astype(np.float32)
    return 2 + (out.size + 1) // 2


def _topk(block: Array) -> bytes:
    """The small magnitude is the least that is kept, the large one the largest."""
    kept = np.sort(np.argsort(-np.abs(block), kind="stable")[: -(-block.size // 64)])
    magnitudes = np.abs(block[kept])
    bits = _bf16_up(float(magnitudes.min())), _bf16_up(float(magnitudes.max()))
    small, large = map(_bf16, bits)
    is_large = large - magnitudes < magnitudes - small
    codes = [int(big) + 2 * int(block[i] < 0) for big, i in zip(is_large, kept, strict=True)]
    return struct.pack("<HH", *bits) + _packed(kept.tolist(), 12) + _packed(codes, 2)


def _of_topk(data: bytes, out: Array) -> int:
    k = -(-out.size // 64)
    small, large = map(_bf16, struct.unpack_from("<HH", data))
    codes_at = 4 + (12 * k + 7) // 8
    pairs = zip(_unpacked(data[4:], 12, k), _unpacked(data[codes_at:], 2, k), strict=True)
    for index, code in pairs:
        magnitude = large if code & 1 else small
        out[index] = -magnitude if code & 2 else magnitude
    return codes_at + (2 * k + 7) // 8


def _peak(block: Array) -> float:
    return float(np.max(np.abs(block)))


def _integers(block: Array, scale: np.float32, most: int) -> Array:
    divided = block / scale if scale else np.zeros_like(block)
    return np.clip(np.rint(divided), -most, most)


def _bf16(bits: int) -> np.float32:
    return np.array([bits << 16], np.uint32).view(np.float32)[0]


def _bf16_up(value: float) -> int:
    """The bits of the least bf16 that is no less than ``value``, which is not negative."""
    bits = int(np.array([value], np.float32).view(np.uint32)[0])
    return (bits + 0xFFFF) >> 16


def _packed(numbers: Sequence[int], bits: int) -> bytes:
    """Filled from the lowest bit of a byte on, the last one padded with zeros."""
    whole = sum(number << bits * place for place, number in enumerate(numbers))
    return whole.to_bytes((bits * len(numbers) + 7) // 8, "little")


def _unpacked(data: bytes, bits: int, count: int) -> Iterator[int]:
    whole = int.from_bytes(data[: (bits * count + 7) // 8], "little")
    return (whole >> bits * place & (1 << bits) - 1 for place in range(count))
