"""Numbers <-> bytes: how the elements of a push or a pull are written, and cut into chunks.

``base`` says what a codec is, ``plain``, ``integers`` and ``topk`` are the codecs (the last two
share ``blocks``), ``table`` has them by number and by name, ``chunks`` cuts payloads for the way.
"""

from syncline_proto.codec.base import Bytes, Codec, Float32
from syncline_proto.codec.chunks import (
    CHUNK_BYTES_MAX,
    check_chunk,
    chunk_elements,
    chunks,
    crc32c,
    crc32c_of,
    pieces,
)
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
    "CHUNK_BYTES_MAX",
    "CODECS",
    "CODEC_BY_NAME",
    "Bytes",
    "Codec",
    "Float32",
    "check_chunk",
    "chunk_elements",
    "chunks",
    "codec_of",
    "crc32c",
    "crc32c_of",
    "decode",
    "decode_into",
    "encode",
    "pieces",
    "published",
]
