"""One push on its way in: the ranks that are in, those that are coming, and what they agree in.

Knows nothing of other pushes, nor of who cuts one that stands still.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from syncline_proto.errors import InvalidRequest
from syncline_proto.spans import SPANS_MAX, check_tiling
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Reservation
from syncline_sync.core.merge import Payload
from syncline_sync.core.record import Judgement
from syncline_sync.shard import Shard

NAMED_MAX = 8
"""Ranks that a sentence names."""

_AGREED = (
    "epoch", "kind", "ranks", "codec", "base_revision", "gradient_step",
    "inner_steps", "tokens", "first_step", "last_step", "phase",
)  # fmt: skip
"""Header fields in which all ranks of a push must agree."""


class PushKey(NamedTuple):
    """Which push it is."""

    fragment: int
    replica: str
    incarnation: int
    seq: int

    @classmethod
    def of(cls, header: pb.PushHeader) -> PushKey:
        return cls(header.fragment, header.replica, header.incarnation, header.seq)

    @property
    def whose(self) -> tuple[int, str]:
        """(fragment, replica): of these one is newer than the other."""
        return self.fragment, self.replica

    @property
    def number(self) -> tuple[int, int]:
        """(incarnation, seq): the larger is the newer."""
        return self.incarnation, self.seq

    @property
    def life(self) -> tuple[str, int]:
        """(replica, incarnation)."""
        return self.replica, self.incarnation


@dataclass(slots=True)
class Staged:
    """One replica's push of one fragment: the ranks that are in, and those that are coming.

    Invariant: all its shards together name no more elements than the fragment has, so what it
    holds stays within its room.
    """

    key: PushKey
    header: pb.PushHeader
    """Of the rank that came first; the others must agree with it."""
    reservation: Reservation
    answer: asyncio.Future[Judgement]
    """Every rank's call waits for the same judgement."""
    coming: dict[int, Shard] = field(default_factory=dict[int, Shard])
    """By rank: whose chunks are coming in now."""
    shards: dict[int, Shard] = field(default_factory=dict[int, Shard])
    """By rank: those that are whole."""
    calls: dict[int, asyncio.Task[None]] = field(default_factory=dict[int, asyncio.Task[None]])
    """By rank: what takes in, or took in, the chunks."""
    claimed: int = 0
    """Elements of both together."""
    span_count: int = 0
    """Spans of both together."""
    submitted: bool = False
    """All ranks are in, and somebody has taken the push to be judged."""
    is_reserved: bool = True
    """Its reservation, be it granted or waited for, has not been given back."""
    granted_s: float = math.inf
    """When it was first seen to have room."""
    heard_s: float = -math.inf
    """When one of its ranks last sent something."""

    @property
    def whole(self) -> bool:
        return len(self.shards) == self.header.ranks

    @property
    def norm(self) -> float:
        """||D|| over all shards; the order of summing is that of the ranks, not of arrival."""
        total = math.fsum(self.shards[rank].square_sum for rank in sorted(self.shards))
        return math.sqrt(total) if total >= 0.0 else math.nan

    def check_tiling(self, numel: int) -> None:
        """Check that the ranks of a whole push cover its fragment of ``numel`` elements once.

        Heavy where they come in many spans: call it in the pool.

        Raises:
            InvalidRequest: an element is missing or comes twice.
        """
        check_tiling(numel, [shard.extent.spans() for shard in self.shards.values()])

    def payloads(self) -> list[Payload]:
        return [self.shards[rank].payload() for rank in sorted(self.shards)]

    def lacks(self, rank: int) -> bool:
        """Whether this rank is not in yet."""
        return rank < self.header.ranks and rank not in self.shards

    def expects(self, shard: Shard) -> bool:
        """Whether this very shard is to be received; not if its rank is in, or began anew."""
        return self.coming.get(shard.header.rank) is shard

    def received_by(self, shard: Shard, call: asyncio.Task[None]) -> None:
        """``call`` takes in a shard that is expected; it is cancelled if that is discarded."""
        if self.expects(shard):
            self.calls[shard.header.rank] = call

    def discard(self, rank: int) -> None:
        """Forget what a rank has sent; the call that still sends it would keep it, so that ends."""
        shard = self.coming.pop(rank, None) or self.shards.pop(rank, None)
        call = self.calls.pop(rank, None)
        if call is not None:
            call.cancel()
        if shard is not None:
            self.claimed -= shard.elements
            self.span_count -= shard.extent.span_count

    def claim(self, shard: Shard, elements_max: int) -> None:
        """Make room for a rank's shard, in place of what it has sent before.

        ``elements_max`` is the fragment's number of elements, for all ranks together.

        Raises:
            InvalidRequest: the ranks together name more than that, or fall into too many spans;
                what the rank has sent before is forgotten all the same.
        """
        rank = shard.header.rank
        self.discard(rank)
        if self.claimed + shard.elements > elements_max:
            raise InvalidRequest(
                f"boxes: rank {rank} has {shard.elements} elements where the other ranks "
                f"leave {elements_max - self.claimed}."
            )
        if self.span_count + shard.extent.span_count > SPANS_MAX:
            raise InvalidRequest(f"boxes: the push falls into more than {SPANS_MAX} spans.")
        self.coming[rank] = shard
        self.claimed += shard.elements
        self.span_count += shard.extent.span_count

    def check_agrees(self, theirs: pb.PushHeader) -> None:
        """See that a rank's header says what that of the first one does.

        Raises:
            InvalidRequest: it does not; the field is named.
        """
        ours = self.header
        for name in ("base_revision", "phase"):
            if ours.HasField(name) != theirs.HasField(name):
                raise InvalidRequest(f"{name}: some ranks of the push name one and some do not.")
        for name in _AGREED:
            if getattr(ours, name) != getattr(theirs, name):
                raise InvalidRequest(
                    f"{name}: rank {theirs.rank} says {getattr(theirs, name)} where rank "
                    f"{ours.rank} of the same push said {getattr(ours, name)}."
                )
        if ours.data != theirs.data:
            raise InvalidRequest(
                f"data: rank {theirs.rank} names other sequences than rank {ours.rank} did of the "
                "same push."
            )

    def not_come(self, still_s: float, refusals: int = 0) -> str:
        """What a push is told that lacks ranks which have sent nothing for ``still_s``.

        ``refusals`` are those of its headers of which nobody knows whose they were.
        """
        ranks = self.header.ranks
        missing = itertools.islice(filter(self.lacks, range(ranks)), NAMED_MAX + 1)
        *named, last = [str(rank) for rank in missing]
        if len(named) == NAMED_MAX:
            last = "…"
        who = f"ranks {', '.join((*named, last))}" if named else f"rank {last}"
        perhaps = ""
        if refusals:
            perhaps = f" (or was refused: {refusals} refusals are not remembered)"
        return f"push: {who} of {ranks} did not come for {still_s:g} s{perhaps}; send it again."
