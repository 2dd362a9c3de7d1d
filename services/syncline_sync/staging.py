"""Pushes on their way in: rank by rank, chunk by chunk, until one is whole.

Holds encoded bytes only, within a budget: a push reserves room for all its ranks at its first
header, and one that finds no room waits its turn instead of failing. Each chunk is decoded once,
for the norm, and dropped in decoded form. Decides nothing about rounds.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from syncline_proto.codec import check_chunk, decode, width
from syncline_proto.errors import InvalidRequest, LeaseLost, Overloaded, SynclineError
from syncline_proto.layout import Layout, boxes_from_proto, check_tiling, runs
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.merge import Payload, square_sum
from syncline_sync.core.record import Judgement

RANKS_MAX = 65_536

_AGREED = (
    "epoch", "kind", "ranks", "codec", "base_revision", "gradient_step",
    "inner_steps", "tokens", "first_step", "last_step",
)  # fmt: skip
"""Header fields in which all ranks of a push must agree."""


@dataclass(slots=True)
class Shard:
    """One rank's part of a push while its chunks come in."""

    header: pb.PushHeader
    runs: npt.NDArray[np.int64]
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
        return Payload(self.header.codec, tuple(self.chunks), self.runs)


@dataclass(slots=True)
class Staged:
    """One replica's push of one fragment, with the ranks that are in."""

    key: tuple[int, str, int, int]
    """(fragment, replica, incarnation, seq)."""
    ranks: int
    reserved: int
    answer: asyncio.Future[Judgement]
    """Every rank's call waits for the same judgement."""
    shards: dict[int, Shard] = field(default_factory=dict[int, Shard])
    submitted: bool = False
    """All ranks are in, and somebody has taken the push to be judged."""

    @property
    def whole(self) -> bool:
        return len(self.shards) == self.ranks

    @property
    def norm(self) -> float:
        """||D|| over all shards; the order of summing is that of the ranks, not of arrival."""
        total = math.fsum(self.shards[rank].square_sum for rank in sorted(self.shards))
        return math.sqrt(total) if total >= 0.0 else math.nan

    def payloads(self) -> list[Payload]:
        return [self.shards[rank].payload() for rank in sorted(self.shards)]


class Budget:
    """Bytes that staged pushes may hold; first come, first served.

    Invariant: ``used`` <= ``limit``, except that one push alone may always enter.
    """

    def __init__(self, limit: int, waiters_max: int = 100_000) -> None:
        self.limit = limit
        self.used = 0
        self._waiters_max = waiters_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def reserve(self, size: int) -> None:
        """Take ``size`` bytes, waiting for room behind those who came before.

        Raises:
            Overloaded: too many wait already.
        """
        if not self._waiting and self._fits(size):
            self.used += size
            return
        if len(self._waiting) >= self._waiters_max:
            raise Overloaded("The sync service has too many pushes waiting for room; try later.")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(size)
            raise

    def release(self, size: int) -> None:
        self.used -= size
        while self._waiting:
            size, turn = self._waiting[0]
            if turn.done():
                self._waiting.popleft()
            elif self._fits(size):
                self._waiting.popleft()
                self.used += size
                turn.set_result(None)
            else:
                break

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self.limit


class Staging:
    """The pushes of one run that are not whole yet, or whole and not yet answered."""

    def __init__(self, layout: Layout, budget: Budget) -> None:
        self._layout = layout
        self._budget = budget
        self._staged: dict[tuple[int, str, int, int], Staged] = {}
        self._answered: dict[tuple[int, str], tuple[int, int, Judgement]] = {}
        """The last judgement of each (fragment, replica), for a rank that did not hear it."""

    def answered(self, header: pb.PushHeader) -> Judgement | None:
        """The judgement of a push that this process has answered already, as a DUPLICATE."""
        known = self._answered.get((header.fragment, header.replica))
        if known is None or known[:2] != (header.incarnation, header.seq):
            return None
        judged = known[2].judged or known[2].verdict
        return replace(known[2], verdict=pb.VERDICT_DUPLICATE, judged=judged)

    async def open(self, header: pb.PushHeader) -> tuple[Staged, Shard]:
        """Find or make the push that a rank's shard belongs to, and room for it.

        Raises:
            InvalidRequest: a field is out of range, or ranks disagree; the field is named.
        """
        shard = self._shard(header)
        key = (header.fragment, header.replica, header.incarnation, header.seq)
        staged = self._staged.get(key)
        if staged is None:
            self._drop_older(key)
            size = self._layout.fragments[header.fragment].numel * width(header.codec)
            await self._budget.reserve(size)
            other = self._staged.get(key)
            if other is not None:  # another rank of this push came in while we waited
                self._budget.release(size)
                staged = other
            else:
                answer: asyncio.Future[Judgement] = asyncio.get_running_loop().create_future()
                staged = Staged(key, header.ranks, size, answer)
                self._staged[key] = staged
        for known in staged.shards.values():
            _agree(known.header, header)
        return staged, shard

    def add(self, staged: Staged, shard: Shard) -> bool:
        """Put a whole shard into its push; True if that made the push whole.

        Raises:
            InvalidRequest: all ranks are in and do not tile the fragment; the push is dropped.
        """
        assert shard.whole
        if self._staged.get(staged.key) is not staged:
            raise InvalidRequest("push: a newer push of this replica has replaced this one.")
        for known in staged.shards.values():
            _agree(known.header, shard.header)
        if staged.submitted:
            return False
        staged.shards[shard.header.rank] = shard
        if not staged.whole:
            return False
        try:
            check_tiling(
                self._layout.fragments[staged.key[0]].numel,
                [s.runs for s in staged.shards.values()],
            )
        except InvalidRequest as error:
            self.drop(staged, error)
            raise
        staged.submitted = True
        return True

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

    def _forget(self, staged: Staged) -> None:
        if self._staged.get(staged.key) is staged:
            del self._staged[staged.key]
            self._budget.release(staged.reserved)
            staged.shards = {}

    def drop_unless(self, holds_lease: Callable[[str, int], bool]) -> None:
        """Forget unfinished pushes of replicas that do not hold their lease (any more)."""
        for staged in list(self._staged.values()):
            _, replica, incarnation, _ = staged.key
            if not staged.submitted and not holds_lease(replica, incarnation):
                self.drop(staged, LeaseLost(f"{replica} does not hold its lease any more."))

    def _drop_older(self, key: tuple[int, str, int, int]) -> None:
        """A replica that starts a push of a fragment has given up its unfinished older ones."""
        for staged in list(self._staged.values()):
            if staged.key[:2] == key[:2] and staged.key < key and not staged.submitted:
                self.drop(staged, InvalidRequest("seq: a newer push has replaced this one."))

    def _shard(self, header: pb.PushHeader) -> Shard:
        if header.fragment >= len(self._layout.fragments):
            raise InvalidRequest(f"fragment: there is no fragment {header.fragment}.")
        if not 1 <= header.ranks <= RANKS_MAX:
            raise InvalidRequest(f"ranks: {header.ranks} is not 1 to {RANKS_MAX}.")
        if header.rank >= header.ranks:
            raise InvalidRequest(f"rank: {header.rank} is not below ranks ({header.ranks}).")
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
        found = runs(self._layout, header.fragment, boxes)
        elements = int(found[:, 1].sum())
        if elements > self._layout.fragments[header.fragment].numel:
            raise InvalidRequest("boxes: the shard has more elements than the fragment.")
        return Shard(header, found, elements)


def _agree(ours: pb.PushHeader, theirs: pb.PushHeader) -> None:
    if ours.HasField("base_revision") != theirs.HasField("base_revision"):
        raise InvalidRequest("base_revision: some ranks of the push name one and some do not.")
    for name in _AGREED:
        if getattr(ours, name) != getattr(theirs, name):
            raise InvalidRequest(
                f"{name}: rank {theirs.rank} says {getattr(theirs, name)} where rank {ours.rank} "
                f"of the same push said {getattr(ours, name)}."
            )
