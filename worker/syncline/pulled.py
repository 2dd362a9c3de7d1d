"""What a pull brings, chunk by chunk: as precise as it was published, and in one copy.

A value in bf16 stays so: it becomes the anchor as it is, and who writes it into a model widens it
on the way; a difference to it may stay one until then (``change``). As fp32 it was written, read
twice and rounded again. For 50M parameters in 15 fragments, from chunks of 1 MiB to model and
anchor, in a loop of one thread, that took 85 to 100 ms of CPU time where this takes 40 (on a busy
machine). Knows chunks and codecs, and nothing of calls or models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from syncline.change import Change, is_long
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
    values: Float32 | UInt16 | Change
    """fp32, or bf16 as its bits; or what takes the anchor there, where that may be changed."""
    published_s: float
    """When it was, on this process's clock (``time.monotonic``)."""

    def whole(self) -> Float32 | UInt16:
        """The values themselves, for who has said that nothing is held: no change comes then."""
        assert not isinstance(self.values, Change), "a change, and nothing was held"
        return self.values


@dataclass(frozen=True, slots=True)
class Held:
    """A published value, bit for bit; ``name`` is the service's for it."""

    name: str
    bits: UInt16
    """bf16, flat."""
    tensors: int | None = None
    """What follows from it may be written over it, and into so many tensors, when it is taken;
    None: it is to stay as it is."""


class Incoming:
    """The values of a pull, as they come."""

    def __init__(
        self,
        header: pb.PullHeader,
        elements: int,
        scratch: Scratch,
        follower: Follower | None = None,
        change: Change | None = None,
    ) -> None:
        """``follower`` holds what a difference comes to; ``change``, where it is to stay one, too.

        All else is from ``scratch``, and so is what comes of a difference in many short chunks.
        """
        self._scratch = scratch
        is_difference = bool(header.difference_from)
        self._follower = follower if is_difference else None
        self._change = change if is_difference else None
        self._codec, self._elements, self._filled = header.codec, elements, 0
        self._out: Float32 | UInt16 = np.empty(0, np.uint16)
        if self._change is None:
            in_bf16 = is_difference or header.codec == pb.CODEC_BF16
            self._out = self._room(in_bf16=in_bf16)

    def take(self, chunk: pb.Chunk | Chunk) -> None:
        """Check and keep the elements that come next.

        Raises:
            ChunkDamaged: it was damaged on the way; who asks again gets another copy.
            InvalidRequest: it is not what was asked for.
        """
        check_sum(chunk)
        if self._follower is None:
            self._filled += self._decoded(chunk)
            return
        if not 0 < len(chunk.data) <= CHUNK_BYTES_MAX:
            raise InvalidRequest(f"chunk.data: it is not 1 to {CHUNK_BYTES_MAX} bytes.")
        if self._change is None:
            out = self._out[self._filled :].view(np.uint16)
            self._filled += self._follower.follow(chunk.data, out)
        else:
            self._filled += self._follower.check(chunk.data)
            self._change.chunks.append(chunk.data)
            if not is_long(self._filled, len(self._change.chunks) - 1):  # the last may be short
                self._keep_no_more(self._change)

    def values(self) -> Float32 | UInt16 | Change:
        """All of them.

        Raises:
            InvalidRequest: some are missing.
        """
        if self._filled != self._elements:
            raise InvalidRequest(f"pull: {self._filled} of {self._elements} elements came.")
        return self._out if self._change is None else self._change

    def _keep_no_more(self, change: Change) -> None:
        """Add what has come of a difference, and what comes, at once."""
        self._change, self._out = None, self._room(in_bf16=True)
        change.made(self._out.view(np.uint16))
        change.chunks.clear()

    def _room(self, *, in_bf16: bool) -> Float32 | UInt16:
        out = self._scratch.take((2 if in_bf16 else 4) * self._elements)
        return out.view(np.uint16) if in_bf16 else out.view(np.float32)

    def _decoded(self, chunk: pb.Chunk | Chunk) -> int:
        out = self._out[self._filled :]
        count = chunk_count(chunk, self._codec, out.size)
        if self._codec == pb.CODEC_BF16:
            # Not by numpy, which lets go of Python's lock for it: see ``crc32c``.
            out[:count].data.cast("B")[:] = chunk.data
        else:
            decode_into(chunk.data, self._codec, out[:count].view(np.float32))
        return count
