"""The codecs that this version speaks, by the number that a header has and by a setting's name."""

from __future__ import annotations

import numpy as np

from syncline_proto.codec.base import Bytes, Codec, Float32
from syncline_proto.codec.integers import Int4, Int8
from syncline_proto.codec.plain import Bf16, Fp32
from syncline_proto.codec.topk import TopK
from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

CODECS: tuple[Codec, ...] = (
    Fp32(number=pb.CODEC_FP32, name="fp32"),
    Bf16(number=pb.CODEC_BF16, name="bf16"),
    Int8(number=pb.CODEC_INT8, name="int8"),
    Int4(number=pb.CODEC_INT4, name="int4"),
    TopK(number=pb.CODEC_TOPK, name="topk"),
)

CODEC_BY_NAME: dict[str, pb.Codec.ValueType] = {codec.name: codec.number for codec in CODECS}

_BY_NUMBER: dict[pb.Codec.ValueType, Codec] = {codec.number: codec for codec in CODECS}


def codec_of(number: pb.Codec.ValueType) -> Codec:
    """The codec of this number.

    Raises:
        InvalidRequest: this version does not speak it.
    """
    try:
        return _BY_NUMBER[number]
    except KeyError:
        known = ", ".join(f"{codec.name} ({codec.number})" for codec in CODECS)
        raise InvalidRequest(f"codec: {number} is not one of {known}.") from None


def encode(values: Float32, number: pb.Codec.ValueType) -> memoryview:
    """Write ``values`` (fp32, flat, contiguous); in fp32 a view, not a copy."""
    return codec_of(number).encode(values)


def decode_into(data: Bytes, number: pb.Codec.ValueType, out: Float32) -> None:
    """Read ``data`` into ``out`` (fp32, flat, contiguous, exactly as many elements).

    Raises:
        InvalidRequest: the sizes do not agree, or no encoder writes such bytes.
    """
    codec_of(number).decode_into(data, out)


def decode(data: Bytes, number: pb.Codec.ValueType, elements: int | None = None) -> Float32:
    """Read ``data`` into a new array of ``elements``; None: of as many as it may hold.

    Raises:
        InvalidRequest: as for ``decode_into``.
    """
    codec = codec_of(number)
    count = codec.elements(len(data)) if elements is None else elements
    if count is None:
        raise InvalidRequest(f"chunk.data: {len(data)} bytes is no size of {codec.name}.")
    out = np.empty(count, np.float32)
    codec.decode_into(data, out)
    return out


def published(values: Float32, number: pb.Codec.ValueType) -> Float32:
    """What everyone sees of ``values``: encoded and decoded once (fp32 returns a copy)."""
    return decode(encode(values, number), number, values.size)
