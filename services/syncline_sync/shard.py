"""One rank's part of a push: what its header may say, and its chunks as they come in.

Keeps the payload encoded, in slabs that are used again; each chunk is gone through once, for the
norm. Knows nothing of other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from syncline_proto.codec import check_chunk, codec_of
from syncline_proto.codec.base import UInt8
from syncline_proto.errors import InvalidRequest
from syncline_proto.parts import Chunk
from syncline_proto.ranges import Range, check_count
from syncline_proto.ranges import check as check_ranges
from syncline_proto.spans import Extent
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.merge import Payload
from syncline_sync.core.record import Kind, WholePush
from syncline_sync.places import Places
from syncline_sync.slabs import SLAB_BYTES, Slabs

RANKS_MAX = 65_536

COUNT_MAX = 1 << 40
"""Of steps, tokens and numbers in a header: sums of them stay far within 64 bits."""

KIND = {
    pb.PUSH_KIND_PSEUDO_GRADIENT: Kind.PSEUDO_GRADIENT,
    pb.PUSH_KIND_GRADIENT: Kind.GRADIENT,
    pb.PUSH_KIND_PARAMETERS: Kind.PARAMETERS,
}

_COUNTS = (
    "seq", "base_revision", "gradient_step", "inner_steps", "tokens", "first_step", "last_step",
)  # fmt: skip


@dataclass(slots=True)
class Shard:
    """One rank's part of a push while its chunks come in."""

    header: pb.PushHeader
    """Without its boxes."""
    extent: Extent
    slabs: Slabs
    """Where its memory comes from."""
    received: int = 0
    square_sum: float = 0.0
    kept: list[UInt8] = field(default_factory=list[UInt8])
    """The payload up to where ``received`` ends, in slabs cut at the codec's grain.

    The last one is no longer than what is left for it: many shards are smaller than a slab.
    """

    def is_like(self, other: Shard) -> bool:
        """Whether it is announced as the very same part of the same push."""
        return self.header == other.header and self.extent.is_like(other.extent)

    @property
    def elements(self) -> int:
        return self.extent.elements

    @property
    def whole(self) -> bool:
        return self.received == self.elements

    def take(self, chunks: Iterable[Chunk]) -> None:
        """Check and keep the next chunks. Heavy, but for a chunk of a light codec.

        Raises:
            InvalidRequest: one is damaged, or not what the header announced.
        """
        codec = codec_of(self.header.codec)
        for chunk in chunks:
            count = check_chunk(chunk, codec.number, self.elements - self.received)
            rest = memoryview(chunk.data)
            while count:
                slab, before = divmod(self.received, self._in_slab)
                here = min(count, self._in_slab - before)
                if slab == len(self.kept):
                    self.kept.append(self._memory())
                at, size = codec.size(before), codec.size(here)
                into = self.kept[slab][at : at + size]
                self.square_sum += codec.copy(rest[:size], into, here)
                self.received += here
                rest, count = rest[size:], count - here

    def _memory(self) -> UInt8:
        """For what comes next: a slab, or less where less is left."""
        left = self.elements - self.received
        if left >= self._in_slab:
            return self.slabs.take()
        return self.slabs.less(codec_of(self.header.codec).size(left))

    @property
    def _in_slab(self) -> int:
        """Elements, a multiple of the codec's grain."""
        codec = codec_of(self.header.codec)
        return SLAB_BYTES // codec.size(codec.grain) * codec.grain

    def payload(self) -> Payload:
        full = codec_of(self.header.codec).size(self._in_slab)
        parts = tuple(slab.data[:full] for slab in self.kept)
        return Payload(self.header.codec, parts, self.extent)

    def free(self) -> None:
        """Let the next push have the slabs; nobody reads or writes them any more."""
        self.slabs.give_back([slab for slab in self.kept if slab.size == SLAB_BYTES])
        self.kept = []


def shard_of(places: Places, header: pb.PushHeader, slabs: Slabs) -> Shard:
    """Check a header and find where its shard lies. As heavy as ``Places.of``.

    ``slabs`` is where the shard's memory is to come from.

    Raises:
        InvalidRequest: a field is out of range; it is named.
    """
    fragments = places.layout.fragments
    if header.fragment >= len(fragments):
        raise InvalidRequest(f"fragment: there is no fragment {header.fragment}.")
    if not 1 <= header.ranks <= RANKS_MAX:
        raise InvalidRequest(f"ranks: {header.ranks} is not 1 to {RANKS_MAX}.")
    if header.rank >= header.ranks:
        raise InvalidRequest(f"rank: {header.rank} is not below ranks ({header.ranks}).")
    for name in _COUNTS:
        if getattr(header, name) > COUNT_MAX:
            raise InvalidRequest(f"{name}: {getattr(header, name)} is over {COUNT_MAX}.")
    if header.seq < 1:
        raise InvalidRequest("seq: counts from 1.")
    if header.kind not in KIND:
        one_of = ", ".join(map(str, KIND))
        raise InvalidRequest(f"kind: {header.kind} is not one of {one_of}.")
    plain = header.kind != pb.PUSH_KIND_PSEUDO_GRADIENT
    if plain and header.codec != pb.CODEC_FP32:
        raise InvalidRequest("codec: gradients and parameters travel in fp32 (1).")
    if not plain and not header.HasField("base_revision"):
        raise InvalidRequest("base_revision: a pseudo-gradient must name its base.")
    if header.kind != pb.PUSH_KIND_PARAMETERS and header.inner_steps < 1:
        raise InvalidRequest("inner_steps: a push covers at least one step.")
    if header.kind == pb.PUSH_KIND_GRADIENT and header.gradient_step < 1:
        raise InvalidRequest("gradient_step: counts from 1.")
    if header.first_step > header.last_step:
        raise InvalidRequest("first_step: is after last_step.")
    check_count(len(header.data), "data")  # before any is made
    check_ranges([Range(one.epoch, one.start, one.stop) for one in header.data], "data")
    codec_of(header.codec)
    found = places.of(header.fragment, header.boxes)
    return Shard(_without_boxes(header), found, slabs)


def _without_boxes(header: pb.PushHeader) -> pb.PushHeader:
    """A copy of what else a header says: a push may wait long, and boxes may be many."""
    slim = pb.PushHeader()
    for named, value in header.ListFields():
        if named.name == "data":
            slim.data.extend(value)
        elif named.name != "boxes":
            setattr(slim, named.name, value)
    return slim


def push_of(header: pb.PushHeader, norm: float) -> WholePush:
    """What a header says of its replica's whole push, whose values have this ``norm``."""
    return WholePush(
        replica=header.replica,
        incarnation=header.incarnation,
        seq=header.seq,
        epoch=header.epoch,
        kind=KIND[header.kind],
        base=header.base_revision if header.HasField("base_revision") else None,
        gradient_step=header.gradient_step,
        norm=norm,
        inner_steps=header.inner_steps,
        tokens=header.tokens,
        first_step=header.first_step,
        last_step=header.last_step,
        data=tuple(Range(one.epoch, one.start, one.stop) for one in header.data),
        phase=header.phase if header.HasField("phase") else None,
    )
