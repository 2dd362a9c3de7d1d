"""A chunk as a message on the wire, written and read without protobuf.

PushRequest and PullResponse give a chunk the same field, so one form serves both ways. What is read
here is exactly what is written here, and what every protobuf library writes of a chunk whose
checksum is not 0; anything else is protobuf's to read. Protobuf copies the data several times, each
time into fresh memory: a millisecond or more for 1 MiB. Writing copies it once, reading never.
"""

from __future__ import annotations

from dataclasses import dataclass

_CHUNK = b"\x12"  # field 2, bytes: the chunk, in PushRequest and PullResponse
_DATA = b"\x0a"  # field 1, bytes: Chunk.data
_CRC = b"\x15"  # field 2, fixed32: Chunk.crc32c
_TAIL = len(_CRC) + 4
_VARINT_MAX = 4  # bytes: 256 MiB, far over any message


@dataclass(frozen=True, slots=True)
class Chunk:
    """What ``pb.Chunk`` is."""

    data: bytes | memoryview
    crc32c: int


def write_chunk(chunk: Chunk) -> bytes:
    """The message whose ``chunk`` is this: PushRequest or PullResponse."""
    size = len(chunk.data)
    inner = _DATA + _varint(size)
    head = _CHUNK + _varint(len(inner) + size + _TAIL) + inner
    # Of a view, since to join a MiB of mere bytes lets go of Python's lock: see ``crc32c``.
    data = memoryview(chunk.data)
    return b"".join((head, data, _CRC, chunk.crc32c.to_bytes(4, "little")))


def read_chunk(message: bytes) -> Chunk | None:
    """The chunk in a message of the form that ``write_chunk`` gives it; None for any other."""
    size, at = _read(message, 0, _CHUNK)
    if at + size != len(message):
        return None
    count, at = _read(message, at, _DATA)
    end = at + count
    if count < 0 or end + _TAIL != len(message) or message[end : end + 1] != _CRC:
        return None
    crc32c = int.from_bytes(message[end + 1 :], "little")
    return Chunk(memoryview(message)[at:end], crc32c)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read(message: bytes, at: int, tag: bytes) -> tuple[int, int]:
    """The length that stands behind ``tag``, and where its bytes begin; (-1, 0) if none does."""
    if message[at : at + 1] == tag:
        value = 0
        for place, byte in enumerate(message[at + 1 : at + 1 + _VARINT_MAX]):
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value, at + 2 + place
    return -1, 0
