"""What a pull brings, chunk by chunk: as precise as it was published, and in one copy.

A value in bf16 stays so: it becomes the anchor as it is, and who writes it into a model widens it
on the way. As fp32 it was written, read twice and rounded again. For 50M parameters in 15
fragments, from chunks of 1 MiB to model and anchor, in a loop of one thread, that took 85 to 100 ms
of CPU time where this takes 40 (on a busy machine). Knows chunks and codecs, and nothing of calls
or models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from syncline.scratch import Scratch
from syncline_proto.codec import (
    CHUNK_BYTES_MAX,
    Float32,
    Follower,
    UInt16,
    check_sum,
    chunk_count,
    decode_into,
)
from syncline_proto.errors import InvalidRequest
from syncline_proto.parts import Chunk
from syncline_proto.v1 import sync_pb2 as pb


@dataclass(frozen=True, slots=True)
class Pulled:
    """A published revision (or mean gradient): its header and this rank's values (flat)."""

    header: pb.PullHeader
    values: Float32 | UInt16
    """fp32, or bf16 as its bits."""
    published_s: float
    """When it was, on this process's clock (``time.monotonic``)."""


@dataclass(frozen=True, slots=True)
class Held:
    """A published value, bit for bit; ``name`` is the service's for it."""

    name: str
    bits: UInt16
    """bf16, flat."""


def array_for(header: pb.PullHeader, elements: int, scratch: Scratch) -> Float32 | UInt16:
    """For the values of a pull; what a difference leads to is in bf16, too."""
    if header.codec == pb.CODEC_BF16 or header.difference_from:
        return scratch.take(2 * elements).view(np.uint16)
    return scratch.take(4 * elements).view(np.float32)


def taken(
    chunk: pb.Chunk | Chunk,
    codec: pb.Codec.ValueType,
    follower: Follower | None,
    out: Float32 | UInt16,
) -> int:
    """Write a chunk's elements to the start of ``out``, where those to come belong; their number.

    ``out`` is what ``array_for`` gave for them.

    Raises:
        ChunkDamaged: it was damaged on the way; who asks again gets another copy.
        InvalidRequest: it is not what was asked for.
    """
    check_sum(chunk)
    if follower is not None:
        if not 0 < len(chunk.data) <= CHUNK_BYTES_MAX:
            raise InvalidRequest(f"chunk.data: it is not 1 to {CHUNK_BYTES_MAX} bytes.")
        return follower.follow(chunk.data, out.view(np.uint16))
    count = chunk_count(chunk, codec, out.size)
    if codec == pb.CODEC_BF16:
        # Not by numpy, which lets go of Python's lock for it: see ``crc32c``.
        out[:count].data.cast("B")[:] = chunk.data
    else:
        decode_into(chunk.data, codec, out[:count].view(np.float32))
    return count
