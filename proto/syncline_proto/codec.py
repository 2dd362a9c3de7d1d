"""Numbers <-> bytes: how the elements of a push or a pull are written.

Pure: numpy arrays in, numpy arrays out, always fp32 on the inside and little-endian on the wire.
Works in cache-sized pieces, since memory is slower than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, cast

import google_crc32c  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
import numpy.typing as npt

from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

Float32: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = bytes | memoryview

CHUNK_BYTES_MAX = 1 << 20
CHUNK_GRAIN = 1024
"""Every chunk but the last holds a multiple of this many elements."""

_PIECE = 1 << 16  # elements; 256 KiB of fp32 stay in the second-level cache

WIDTH: dict[pb.Codec.ValueType, int] = {pb.CODEC_FP32: 4, pb.CODEC_BF16: 2}
"""Bytes an element, for each codec that this version speaks."""

CODEC_BY_NAME: dict[str, pb.Codec.ValueType] = {"fp32": pb.CODEC_FP32, "bf16": pb.CODEC_BF16}


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of ``data``."""
    return cast(int, google_crc32c.value(data))  # pyright: ignore[reportUnknownMemberType]


def crc32c_of(data: Bytes, crc: int = 0) -> int:
    """CRC-32C of what ``crc`` covers, followed by ``data``; for long data, without a copy of it."""
    view = memoryview(data).cast("B")
    for start in range(0, len(view), CHUNK_BYTES_MAX):
        piece = bytes(view[start : start + CHUNK_BYTES_MAX])
        crc = cast(int, google_crc32c.extend(crc, piece))  # pyright: ignore[reportUnknownMemberType]
    return crc


def width(codec: pb.Codec.ValueType) -> int:
    """Bytes an element.

    Raises:
        InvalidRequest: this version does not speak the codec.
    """
    try:
        return WIDTH[codec]
    except KeyError:
        raise InvalidRequest(f"codec: {codec} is not one of fp32 (1), bf16 (2).") from None


def chunk_elements(codec: pb.Codec.ValueType) -> int:
    """Elements in a full chunk."""
    return CHUNK_BYTES_MAX // width(codec)


def encode(values: Float32, codec: pb.Codec.ValueType) -> memoryview:
    """Write ``values`` (fp32, flat, contiguous); fp32 is a view, not a copy.

    bf16 rounds to nearest even; NaN stays NaN (quiet), infinities stay.
    """
    if width(codec) == 4:
        return values.data.cast("B")
    out = np.empty(values.size, np.uint16)
    bits = values.view(np.uint32)
    for start in range(0, values.size, _PIECE):
        piece = bits[start : start + _PIECE]
        rounded = (piece >> np.uint32(16)) & np.uint32(1)
        rounded += np.uint32(0x7FFF)
        rounded += piece
        rounded >>= np.uint32(16)
        nan = (piece & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        if nan.any():
            rounded[nan] = (piece[nan] >> np.uint32(16)) | np.uint32(0x40)
        out[start : start + _PIECE] = rounded
    return out.data.cast("B")


def decode_into(data: Bytes, codec: pb.Codec.ValueType, out: Float32) -> None:
    """Read ``data`` into ``out`` (fp32, flat, contiguous, exactly as many elements).

    Raises:
        InvalidRequest: the sizes do not agree.
    """
    if len(data) != out.size * width(codec):
        raise InvalidRequest(f"chunk: {len(data)} bytes do not hold {out.size} elements.")
    if width(codec) == 4:
        out[:] = np.frombuffer(data, np.float32)
        return
    upper = np.frombuffer(data, np.uint16)
    bits = out.view(np.uint32)
    for start in range(0, out.size, _PIECE):
        stop = min(start + _PIECE, out.size)
        np.left_shift(upper[start:stop], np.uint32(16), out=bits[start:stop], dtype=np.uint32)


def decode(data: Bytes, codec: pb.Codec.ValueType) -> Float32:
    """Read ``data`` into a new array."""
    out = np.empty(len(data) // width(codec), np.float32)
    decode_into(data, codec, out)
    return out


def published(values: Float32, codec: pb.Codec.ValueType) -> Float32:
    """What everyone sees of ``values``: encoded and decoded once (fp32 returns a copy)."""
    return decode(bytes(encode(values, codec)), codec)


def chunks(payload: memoryview, codec: pb.Codec.ValueType) -> Iterator[pb.Chunk]:
    """Cut an encoded payload into checksummed chunks, in order."""
    step = chunk_elements(codec) * width(codec)
    for start in range(0, len(payload), step):
        data = bytes(payload[start : start + step])
        yield pb.Chunk(data=data, crc32c=crc32c(data))


def check_chunk(chunk: pb.Chunk, codec: pb.Codec.ValueType, elements_left: int) -> int:
    """Return how many elements the chunk holds.

    Raises:
        InvalidRequest: too long, not whole elements, off the grain, past the payload's end, or
            damaged on the way.
    """
    size = len(chunk.data)
    count, rest = divmod(size, width(codec))
    if size == 0 or size > CHUNK_BYTES_MAX or rest:
        raise InvalidRequest(
            f"chunk.data: {size} bytes is not 1 to {CHUNK_BYTES_MAX} of whole elements."
        )
    if count > elements_left:
        raise InvalidRequest(f"chunk.data: {count} elements where only {elements_left} are left.")
    if count < elements_left and count % CHUNK_GRAIN:
        raise InvalidRequest(
            f"chunk.data: {count} elements, of {elements_left} still to come, is not a multiple of "
            f"{CHUNK_GRAIN}; only the last chunk need not be."
        )
    if crc32c(chunk.data) != chunk.crc32c:
        raise InvalidRequest("chunk.crc32c: the data was damaged on the way; send the push again.")
    return count
