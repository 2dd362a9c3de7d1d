"""Numbers on the wire, from docs/protocol.md section 7: fp32, bf16, differences, chunks; the codecs
in blocks are in ``blocks``.

Knows nothing of calls and messages, and nothing of Syncline's own code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from independent import blocks

Array = npt.NDArray[Any]

FP32, BF16 = 1, 2
BYTES_EACH = {FP32: 4, BF16: 2}
CHUNK_BYTES_MAX = 2 * 1024 * 1024
CHUNK_ELEMENTS = 1024


def _table() -> tuple[int, ...]:
    """CRC-32C's steps for one byte, lowest bit first."""
    steps: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        steps.append(byte)
    return tuple(steps)


TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of ``data``."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[crc & 0xFF ^ byte] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283, "RFC 3720 has this number"


def encode(values: Array, codec: int) -> bytes:
    """fp32 [n] -> its bytes on the wire."""
    values = np.asarray(values, "<f4")
    if codec in blocks.ELEMENTS:
        return blocks.encode(values, codec)
    if codec == FP32:
        return values.tobytes()
    bits = values.view("<u4").astype(np.uint64)
    rounded = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    nan = np.isnan(values)
    rounded[nan] = bits[nan] >> 16 | 0x40
    return rounded.astype("<u2").tobytes()


def decode(data: bytes, codec: int) -> Array:
    """Bytes on the wire -> fp32 [n]."""
    if codec == FP32:
        return np.frombuffer(data, "<f4")
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")


def through(values: Array, codec: int) -> Array:
    """What arrives of ``values``: fp32 [n]."""
    if codec in blocks.ELEMENTS:
        return blocks.decode(encode(values, codec), codec, values.size)
    return decode(encode(values, codec), codec)


def cut(payload: bytes, codec: int) -> Iterator[bytes]:
    """The chunks of a payload: full ones, then what is left."""
    is_plain = codec in BYTES_EACH
    full = CHUNK_BYTES_MAX if is_plain else blocks.full_chunk(codec, CHUNK_BYTES_MAX)
    for start in range(0, len(payload), full):
        yield payload[start : start + full]


def joined(chunks: Iterable[Any], codec: int) -> bytes:
    """A payload from its ``Chunk`` messages; AssertionError if one breaks a rule of the page."""
    pieces: list[bytes] = []
    for chunk in chunks:
        each = BYTES_EACH[codec]
        if pieces:
            assert len(pieces[-1]) % (CHUNK_ELEMENTS * each) == 0, "only the last may be odd"
        assert 0 < len(chunk.data) <= CHUNK_BYTES_MAX and len(chunk.data) % each == 0
        assert crc32c(chunk.data) == chunk.crc32c
        pieces.append(chunk.data)
    return b"".join(pieces)


def followed(held: Array, places: Sequence[int], chunks: Iterable[Any]) -> Array:
    """The value after ``held``, fp32 [n], whose elements have these numbers in the flat vector."""
    new, at = held.copy(), 0
    for chunk in chunks:
        assert 0 < len(chunk.data) <= CHUNK_BYTES_MAX and crc32c(chunk.data) == chunk.crc32c
        block, scale, read = -1, np.float32(0), 0
        while read < len(chunk.data):
            if places[at] // 256 != block:
                block, read = places[at] // 256, read + 4
                scale = np.float32(struct.unpack_from("<f", chunk.data, read - 4)[0])
            new[at] += scale * np.float32(struct.unpack_from("b", chunk.data, read)[0])
            at, read = at + 1, read + 1
    assert at == held.size, f"{at} elements of {held.size}"
    return through(new, BF16)
