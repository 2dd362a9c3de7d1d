"""Pushes on their way in: rank by rank, chunk by chunk, until one is whole.

Holds encoded bytes only, within a budget: a push asks for room for all its ranks at its first
header, and one that finds none waits its turn instead of failing. Each chunk is decoded once,
for the norm, and dropped in decoded form. Decides nothing about rounds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from syncline_proto.codec import check_chunk, decode, width
from syncline_proto.errors import InvalidRequest, SynclineError
from syncline_proto.layout import Layout, boxes_from_proto
from syncline_proto.spans import SPANS_MAX, check_tiling, spans
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget, Room
from syncline_sync.core.merge import Payload, square_sum
from syncline_sync.core.record import Judgement

RANKS_MAX = 65_536

COUNT_MAX = 1 << 40
"""Of steps, tokens and numbers in a header: sums of them stay far within 64 bits."""

_COUNTS = (
    "seq", "base_revision", "gradient_step", "inner_steps", "tokens", "first_step", "last_step",
)  # fmt: skip

_AGREED = (
    "epoch", "kind", "ranks", "codec", "base_revision", "gradient_step",
    "inner_steps", "tokens", "first_step", "last_step",
)  # fmt: skip
"""Header fields in which all ranks of a push must agree."""


@dataclass(slots=True)
class Shard:
    """One rank's part of a push while its chunks come in."""

    header: pb.PushHeader
    spans: npt.NDArray[np.int64]
    elements: int
    received: int = 0
    square_sum: float = 0.0
    chunks: list[bytes] = field(default_factory=list[bytes])

    @property
    def whole(self) -> bool:
        return self.received == self.elements

    def take(self, chunk: pb.Chunk) -> None:
        """Check and keep one chunk. Heavy: call it in the pool.

        Raises:
            InvalidRequest: the chunk is damaged, or not what the header announced.
        """
        codec = self.header.codec
        count = check_chunk(chunk, codec, self.elements - self.received)
        self.square_sum += square_sum(decode(chunk.data, codec))
        self.received += count
        self.chunks.append(chunk.data)

    def payload(self) -> Payload:
        return Payload(self.header.codec, tuple(self.chunks), self.spans)


@dataclass(slots=True)
class Staged:
    """One replica's push of one fragment: the ranks that are in, and those that are coming.

    Invariant: all its shards together name no more elements than the fragment has, so what it
    holds stays within its room.
    """

    key: tuple[int, str, int, int]
    """(fragment, replica, incarnation, seq)."""
    header: pb.PushHeader
    """Of the rank that came first; the others must agree with it."""
    room: Room
    answer: asyncio.Future[Judgement]
    """Every rank's call waits for the same judgement."""
    coming: dict[int, Shard] = field(default_factory=dict[int, Shard])
    """By rank: whose chunks are coming in now."""
    shards: dict[int, Shard] = field(default_factory=dict[int, Shard])
    """By rank: those that are whole."""
    claimed: int = 0
    """Elements of both together."""
    pieces: int = 0
    """Spans of both together."""
    submitted: bool = False
    """All ranks are in, and somebody has taken the push to be judged."""

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

        Heavy where they come in many pieces: call it in the pool.

        Raises:
            InvalidRequest: an element is missing or comes twice.
        """
        check_tiling(numel, [shard.spans for shard in self.shards.values()])

    def payloads(self) -> list[Payload]:
        return [self.shards[rank].payload() for rank in sorted(self.shards)]

    def expects(self, shard: Shard) -> bool:
        """Whether this very shard is to be received; not if its rank is in, or began anew."""
        return self.coming.get(shard.header.rank) is shard

    def discard(self, rank: int) -> None:
        """Forget what a rank has sent."""
        shard = self.coming.pop(rank, None) or self.shards.pop(rank, None)
        if shard is not None:
            self.claimed -= shard.elements
            self.pieces -= len(shard.spans)

    def claim(self, shard: Shard, elements_max: int) -> None:
        """Make room for a rank's shard, in place of what it has sent before.

        ``elements_max`` is the fragment's number of elements, for all ranks together.

        Raises:
            InvalidRequest: the ranks together name more than that, or fall into too many pieces;
                what the rank has sent before is forgotten all the same.
        """
        rank = shard.header.rank
        self.discard(rank)
        if self.claimed + shard.elements > elements_max:
            raise InvalidRequest(
                f"boxes: rank {rank} has {shard.elements} elements where the other ranks "
                f"leave {elements_max - self.claimed}."
            )
        if self.pieces + len(shard.spans) > SPANS_MAX:
            raise InvalidRequest(f"boxes: the push falls into more than {SPANS_MAX} pieces.")
        self.coming[rank] = shard
        self.claimed += shard.elements
        self.pieces += len(shard.spans)


class Staging:
    """The pushes of one run that are not whole yet, or whole and not yet answered."""

    def __init__(self, layout: Layout, budget: Budget) -> None:
        self._layout = layout
        self._budget = budget
        self._staged: dict[tuple[int, str, int, int], Staged] = {}
        self._answered: dict[tuple[int, str], tuple[int, int, Judgement]] = {}
        """The last judgement of each (fragment, replica), for a rank that did not hear it."""
        self._left: dict[tuple[int, str], tuple[int, int, int]] = {}
        """(incarnation, seq, place in the budget's line) of a push whose calls have all ended.

        By (fragment, replica): a client whose call is cut while it waits for room asks again.
        """

    def answered(self, header: pb.PushHeader) -> Judgement | None:
        """The judgement of a push that this process has answered already, as a DUPLICATE."""
        known = self._answered.get((header.fragment, header.replica))
        if known is None or known[:2] != (header.incarnation, header.seq):
            return None
        judged = known[2].judged or known[2].verdict
        return replace(known[2], verdict=pb.VERDICT_DUPLICATE, judged=judged)

    def shard(self, header: pb.PushHeader) -> Shard:
        """Check a header and find where its shard lies. May be heavy: call it in the pool.

        Raises:
            InvalidRequest: a field is out of range; it is named.
        """
        if header.fragment >= len(self._layout.fragments):
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
        if header.kind not in (1, 2, 3):
            raise InvalidRequest(f"kind: {header.kind} is not one of 1, 2, 3.")
        plain = header.kind != pb.PUSH_KIND_PSEUDO_GRADIENT
        if plain and header.codec != pb.CODEC_FP32:
            raise InvalidRequest("codec: gradients and parameters travel in fp32 (1).")
        if header.kind == pb.PUSH_KIND_PSEUDO_GRADIENT:
            if not header.HasField("base_revision"):
                raise InvalidRequest("base_revision: a pseudo-gradient must name its base.")
            if header.inner_steps < 1:
                raise InvalidRequest("inner_steps: a push covers at least one step.")
        if header.kind == pb.PUSH_KIND_GRADIENT and header.gradient_step < 1:
            raise InvalidRequest("gradient_step: counts from 1.")
        if header.first_step > header.last_step:
            raise InvalidRequest("first_step: is after last_step.")
        width(header.codec)
        boxes = boxes_from_proto(header.boxes)
        found = spans(self._layout, header.fragment, boxes)
        elements = int(found[:, 1].sum())
        if elements > self._layout.fragments[header.fragment].numel:
            raise InvalidRequest("boxes: the shard has more elements than the fragment.")
        return Shard(header, found, elements)

    def join(self, shard: Shard) -> Staged:
        """Find or make the push that a rank's shard belongs to.

        Receive the shard if the push ``expects`` it, once there is ``room``; and ``leave`` it,
        however that ends. A rank that begins anew replaces what it has sent before.

        Raises:
            InvalidRequest: ranks disagree, or overlap; the field is named.
            Overloaded: too many pushes wait for room.
        """
        header = shard.header
        key = (header.fragment, header.replica, header.incarnation, header.seq)
        staged = self._staged.get(key)
        if staged is None:
            self._drop_older(key)
            size = self._numel(key) * width(header.codec)
            answer: asyncio.Future[Judgement] = asyncio.get_running_loop().create_future()
            room = self._budget.ask(size, self._place(key))
            staged = Staged(key, header, room, answer)
            self._staged[key] = staged
        _agree(staged.header, header)
        before = staged.shards.get(header.rank)
        if staged.submitted or (before is not None and before.header == header):
            return staged
        staged.claim(shard, self._numel(key))
        return staged

    def add(self, staged: Staged, shard: Shard) -> bool:
        """Put a whole shard into its push; True if that made the push whole.

        Whoever is told so must see that it is judged: nothing else answers it from now on.
        """
        assert shard.whole and staged.expects(shard)
        staged.shards[shard.header.rank] = staged.coming.pop(shard.header.rank)
        staged.submitted = staged.whole
        return staged.submitted

    def leave(self, staged: Staged, shard: Shard) -> None:
        """A rank's call has ended: forget its shard if that is not whole, and an empty push.

        The push keeps its place in the line, for when it is sent again.
        """
        if staged.expects(shard):
            staged.discard(shard.header.rank)
        if not staged.coming and not staged.shards and self._staged.get(staged.key) is staged:
            fragment, replica, incarnation, seq = staged.key
            self._left[fragment, replica] = (incarnation, seq, staged.room.place)
            self.drop(staged, InvalidRequest("push: its ranks have ended their calls."))

    def settle(self, staged: Staged, judgement: Judgement) -> None:
        """Answer every rank of a push, and forget its bytes."""
        fragment, replica, incarnation, seq = staged.key
        self._answered[fragment, replica] = (incarnation, seq, judgement)
        if not staged.answer.done():
            staged.answer.set_result(judgement)
        self._forget(staged)

    def drop(self, staged: Staged, why: SynclineError) -> None:
        """Forget a push and free its room; ranks that wait for its answer get ``why``."""
        if not staged.answer.done():
            staged.answer.set_exception(why)
            staged.answer.exception()  # nobody may be waiting, and that is no fault
        self._forget(staged)

    def fence(self, fenced: Callable[[int, str, int], Judgement | None]) -> None:
        """Answer unfinished pushes of replicas that do not hold their lease (any more).

        ``fenced`` (fragment, replica, incarnation) is the answer to one that does not.
        """
        for staged in list(self._staged.values()):
            refusal = None if staged.submitted else fenced(*staged.key[:3])
            if refusal is not None:
                self.settle(staged, refusal)
        self._answered = {
            key: known for key, known in self._answered.items() if not fenced(*key, known[0])
        }
        self._left = {key: left for key, left in self._left.items() if not fenced(*key, left[0])}

    def _forget(self, staged: Staged) -> None:
        if self._staged.get(staged.key) is staged:
            del self._staged[staged.key]
            self._budget.give_back(staged.room)
            staged.coming, staged.shards = {}, {}

    def _drop_older(self, key: tuple[int, str, int, int]) -> None:
        """A replica that starts a push of a fragment has given up its unfinished older ones."""
        for staged in list(self._staged.values()):
            if staged.key[:2] == key[:2] and staged.key < key and not staged.submitted:
                self.drop(staged, InvalidRequest("seq: a newer push has replaced this one."))

    def _place(self, key: tuple[int, str, int, int]) -> int | None:
        """Where in the line this push was before; a newer one gives up its older one's place."""
        left = self._left.pop(key[:2], None)
        return left[2] if left is not None and left[:2] == key[2:] else None

    def _numel(self, key: tuple[int, str, int, int]) -> int:
        return self._layout.fragments[key[0]].numel


def _agree(ours: pb.PushHeader, theirs: pb.PushHeader) -> None:
    if ours.HasField("base_revision") != theirs.HasField("base_revision"):
        raise InvalidRequest("base_revision: some ranks of the push name one and some do not.")
    for name in _AGREED:
        if getattr(ours, name) != getattr(theirs, name):
            raise InvalidRequest(
                f"{name}: rank {theirs.rank} says {getattr(theirs, name)} where rank {ours.rank} "
                f"of the same push said {getattr(ours, name)}."
            )
