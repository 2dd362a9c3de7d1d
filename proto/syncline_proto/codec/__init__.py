"""Numbers <-> bytes: how the elements of a push or a pull are written, and cut into chunks.

``base`` says what a codec is, ``plain``, ``integers`` and ``topk`` are the codecs (int4 and top-k
share ``blocks``), ``table`` has them by number and by name, ``chunks`` cuts payloads for the way.
``difference`` tells a published value by the one before it.
"""

from syncline_proto.codec.base import Bytes, Codec, Float32, UInt8, UInt16, square_sum
from syncline_proto.codec.chunks import (
    CHUNK_BYTES_MAX,
    check_chunk,
    check_sum,
    chunk_count,
    chunk_elements,
    chunks,
    crc32c,
)
from syncline_proto.codec.difference import (
    DIFFERENCE_ELEMENTS,
    Follower,
    advance,
    advance_by,
    carry,
    cut,
    is_worth_it,
    publish,
)
from syncline_proto.codec.difference_loops import Count
from syncline_proto.codec.table import (
    CODEC_BY_NAME,
    CODECS,
    codec_of,
    decode,
    decode_into,
    encode,
    published,
)

__all__ = [
    "Bytes",
    "CHUNK_BYTES_MAX",
    "CODECS",
    "CODEC_BY_NAME",
    "Codec",
    "Count",
    "DIFFERENCE_ELEMENTS",
    "Float32",
    "Follower",
    "UInt16",
    "UInt8",
    "advance",
    "advance_by",
    "carry",
    "check_chunk",
    "check_sum",
    "chunk_count",
    "chunk_elements",
    "chunks",
    "codec_of",
    "crc32c",
    "cut",
    "decode",
    "decode_into",
    "encode",
    "is_worth_it",
    "publish",
    "published",
    "square_sum",
]
