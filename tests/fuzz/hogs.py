"""Messages that are small on the wire for what they would be in memory, and streams without end.

The largest that gRPC lets through are nothing but boxes, names, numbers, unknown fields or garbage;
what is compressed it must not let through at all.
"""

from __future__ import annotations

from fuzz.requests import Request
from fuzz.streams import COLUMNS, CUT, LAYOUT, RUN, Stream, header
from syncline_proto.codec import crc32c
from syncline_proto.v1 import sync_pb2 as pb

MESSAGE_BYTES = 8 << 20
"""The largest message that the service takes."""

INFLATED_BYTES = 64 << 20
"""A compressed message, where it is read: a thousandth of that comes over the wire."""


def streams() -> list[Stream]:
    """Pushes: one header, or one without end."""
    whole = header(0, pb.CODEC_FP32)
    whole.boxes.extend(box.to_proto() for box in LAYOUT.fragments[0].boxes)
    named = header(0, pb.CODEC_FP32).SerializeToString()
    size = MESSAGE_BYTES
    largest = size - len(named) - 16
    chunk = pb.PushRequest(chunk=pb.Chunk(data=bytes(1 << 20), crc32c=crc32c(bytes(1 << 20))))
    dot = pb.PushRequest(chunk=pb.Chunk(data=b"\0", crc32c=crc32c(b"\0")))
    first = pb.PushRequest(header=whole).SerializeToString()
    numbers = _field(b"\x12", bytes(largest - 32))
    return [
        Stream((_field(b"\x0a", named + b"\x6a\x00" * (largest // 2)),), "end"),
        Stream((_field(b"\x0a", named + _field(b"\x6a", numbers)),), "end"),
        Stream((_field(b"\x0a", named + b"\xc0\x3e\x01" * (largest // 3)),), "still"),
        Stream((bytes(range(256)) * (size // 256),), "end"),
        Stream((first, *[chunk.SerializeToString()] * 60), "still"),
        Stream((first, *[dot.SerializeToString()] * 2000), "still"),
        Stream((), "still"),
    ]


def requests() -> list[Request]:
    """Pulls of boxes without number, openings with layouts of them, of names and of sizes."""
    pull = pb.PullRequest(run=RUN, fragment=0, newest=True).SerializeToString()
    opened = pb.OpenRunRequest(run=RUN, replica="b", incarnation=1).SerializeToString()
    size = MESSAGE_BYTES - 64
    row = [pb.Box(tensor=0, offsets=[i % CUT, 0], sizes=[0, COLUMNS]) for i in range(100_000)]
    many = pb.PullRequest(run=RUN, fragment=0, newest=True, boxes=row, header_only=True)
    names = b"".join(b"\x22\x07%07x" % i for i in range(size // 9))
    layouts = [
        b"\x0a\x00" * (size // 2),  # tensors
        b"\x12\x00" * (size // 2),  # fragments
        _field(b"\x12", b"\x12\x00" * (size // 2 - 8)) + b"\x0a\x00",  # boxes
        _field(b"\x0a", _field(b"\x0a", b"w") + names[: -9 * 9]) + b"\x12\x00",  # aliases
        _field(b"\x0a", _field(b"\x0a", b"w") + _field(b"\x12", b"\x01" * (size - 64)))
        + b"\x12\x00",  # dimensions
        _field(b"\x0a", _field(b"\x0a", b"w" * (size - 64))) + b"\x12\x00",  # a name
        _field(b"\x1a", b"f" * (size - 64)) + LAYOUT.to_proto().SerializeToString(),  # frozen
    ]
    pulls = [
        pull + b"\x4a\x00" * (size // 2),
        pull + _field(b"\x4a", _field(b"\x12", bytes(size - 64))),
        pull + _field(b"\x5a", b"h" * (size - 64)),
        many.SerializeToString(),
    ]
    return [
        *(Request("Pull", data, is_cut=False) for data in pulls),
        *(Request("OpenRun", opened + _field(b"\x22", one), is_cut=False) for one in layouts),
    ]


def compressed() -> list[Stream | Request]:
    """A push and a pull of zeros, which are to be sent compressed."""
    zeros = bytes(INFLATED_BYTES)
    return [
        Stream((zeros,), "end", is_compressed=True),
        Request("Pull", zeros, is_cut=False, is_compressed=True),
    ]


def _field(tag: bytes, body: bytes) -> bytes:
    """A field of bytes, or a message in a message."""
    return tag + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
