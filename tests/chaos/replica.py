"""A replica as the protocol wants it, with noise for progress: it pushes, pulls, never gives up.

Whatever fails is done again: a push under the same seq with the same bytes. After STALE the same
progress goes out under the next seq; with a life that has ended its progress ends, too. One of the
replicas has two ranks.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import grpc
import httpx
import numpy as np

from chaos.ledger import COUNTED, Ledger, Sent
from syncline_proto.codec import codec_of, crc32c, encode
from syncline_proto.layout import Layout
from syncline_proto.owners import owners
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.service import code_of, pushed, rank_header

RUN = "chaos"
PUSH_S, PULL_S, AGAIN_S = 10.0, 2.0, 0.02
CHUNK_GRAINS = 16
"""A push is many chunks, so that a kill finds it half-way."""
CODECS = (pb.CODEC_BF16, pb.CODEC_INT8, pb.CODEC_FP32)
AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
"""How a call ends that is made again; see docs/protocol.md, section 10."""

BROKEN = "Internal error from Core"
"""What grpc.aio calls it when the connection goes while a message is being sent."""

CHANNEL = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
    ("grpc.use_local_subchannel_pool", 1),
)


def may_be_repeated(error: grpc.aio.AioRpcError) -> bool:
    """Whether a call failed in a way that a correct client meets."""
    return error.code() in AGAIN or error.details() == BROKEN


@dataclass(frozen=True, slots=True)
class Anchor:
    """What a replica has of a fragment; before it has anything, of revision -1."""

    revision: int = -1
    epoch: int = 1
    checksum: int = 0


class End(Enum):
    """What became of a push."""

    COMMITTED = "it is in a revision"
    STALE = "it is in none, and will not be"
    FENCED = "its replica's life has ended"


@dataclass(slots=True)
class Plan:
    """What the storm tells its replicas."""

    seed: int
    settings: RunSettings
    layout: Layout
    stall: float
    """How likely a replica sleeps beyond a round's deadline before a push."""
    rebirth: float
    """How likely it registers anew before a push, whatever its other fragments are at."""
    until: list[int] | None = None
    """The revision at which each fragment stops; None while the storm goes on."""

    def is_over(self, fragment: int, revision: int) -> bool:
        return self.until is not None and revision >= self.until[fragment]


class Replica:
    """One replica, with all its lives."""

    def __init__(
        self, number: int, plan: Plan, ledger: Ledger, control: str, syncs: Sequence[str]
    ) -> None:
        """``syncs``: the addresses of the sync services, each at its index."""
        self.name = f"replica-{number}"
        self._number, self._plan, self._ledger = number, plan, ledger
        self._http = httpx.AsyncClient(base_url=f"{control}/v1", timeout=10.0, trust_env=False)
        self._channels = [grpc.aio.insecure_channel(sync, options=CHANNEL) for sync in syncs]
        self._stubs: list[Any] = [sync_pb2_grpc.SyncServiceStub(one) for one in self._channels]
        self._owners = owners([spec.numel for spec in plan.layout.fragments], len(syncs))
        self._incarnation = 0
        self._coming = asyncio.Lock()
        self._works = itertools.count(number, 1000)
        self.lives = 0

    async def run(self) -> None:
        """Live until the plan is over."""
        await self._live(0)
        beating = asyncio.create_task(self._beat())
        try:
            async with asyncio.TaskGroup() as group:
                for fragment in range(len(self._plan.layout.fragments)):
                    group.create_task(self._train(fragment))
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            for channel in self._channels:
                await channel.close()
            await self._http.aclose()

    async def _train(self, fragment: int) -> None:
        """Round after round of one fragment."""
        random = np.random.default_rng([self._plan.seed, self._number, fragment])
        life, seq, base, push = 0, 0, Anchor(), None
        while not self._plan.is_over(fragment, base.revision):
            if life != self._incarnation:
                life, seq, base, push = self._incarnation, 0, Anchor(), None
            if random.random() < self._plan.rebirth:
                self._end_life(life)
                await self._live(life)
                continue
            if push is None:
                push = self._progress(random, fragment, offer=base.revision < 0)
            seq += 1
            sent = self._sent(push, life, seq, base)
            if random.random() < self._plan.stall:
                await asyncio.sleep(self._plan.settings.timeouts.round_deadline_s * 1.2)
            end, pulled = await self._settled(sent)
            if end is End.FENCED:
                await self._live(life)
            elif end is End.COMMITTED or base.revision < 0:
                base, push = pulled, None
            else:
                base = pulled

    def _progress(
        self, random: np.random.Generator, fragment: int, *, offer: bool
    ) -> tuple[int, pb.PushHeader, list[bytes], list[pb.PushHeader]]:
        """(work, header, payload and header by rank): some steps of it, or first parameters."""
        spec = self._plan.layout.fragments[fragment]
        values = 0.02 * random.standard_normal(spec.numel, np.float32)
        header = pb.PushHeader(
            run=RUN, epoch=1, replica=self.name, fragment=fragment, ranks=1,
            kind=pb.PUSH_KIND_PARAMETERS, codec=pb.CODEC_FP32, boxes=[spec.boxes[0].to_proto()],
        )  # fmt: skip
        if not offer:
            # Mostly alike; some are so loud that weights are rescaled, or that they do not count.
            loud = random.choice([1.0, 25.0, 500.0, np.nan], p=[0.94, 0.03, 0.02, 0.01])
            values *= np.float32(loud * np.exp(0.3 * random.standard_normal()))
            header.kind = pb.PUSH_KIND_PSEUDO_GRADIENT
            header.codec = CODECS[random.integers(len(CODECS))]
            header.inner_steps = int(random.integers(1, 2 * self._plan.settings.sync_every))
            header.tokens = int(random.integers(1, 1 << 20))
        edges = [0, values.size]
        if self._number == 0:
            edges.insert(1, int(random.integers(1, values.size)))
        cuts = list(itertools.pairwise(edges))
        payloads = [bytes(encode(values[a:b], header.codec)) for a, b in cuts]
        ranks = [rank_header(header, rank, len(cuts), a, b) for rank, (a, b) in enumerate(cuts)]
        return next(self._works), header, payloads, ranks

    def _sent(self, push: Any, life: int, seq: int, base: Anchor) -> Sent:
        work, whole, payloads, ranks = push
        for header in (whole, *ranks):
            header.incarnation, header.seq = life, seq
            if header.kind != pb.PUSH_KIND_PARAMETERS:
                header.base_revision, header.epoch = base.revision, base.epoch
        key = (self.name, life, whole.fragment, seq)
        copy = pb.PushHeader()
        copy.CopyFrom(whole)
        return self._ledger.send(Sent(key, work, copy, payloads, ranks, anchor=base.checksum))

    async def _settled(self, sent: Sent) -> tuple[End, Anchor]:
        """Push, and pull the result, until it is known what became of it; and where we stand."""
        fragment, payloads, missed = sent.header.fragment, sent.payloads, False
        while True:
            try:
                answer = await self._pushed(fragment, sent.ranks, payloads)
                judged = self._ledger.answered(sent, answer)
                if judged == pb.VERDICT_FENCED:
                    break
                pulled = await self._pull(fragment, answer.result_revision)
            except grpc.aio.AioRpcError as error:
                if code_of(error) == "LEASE_LOST":
                    break
                await self._again(fragment, error)
                continue
            if sent.key in self._ledger.committed:
                assert judged in COUNTED, f"{sent.key} is committed, and was refused"
                return End.COMMITTED, pulled
            if judged == pb.VERDICT_STALE:
                return End.STALE, pulled
            # A kill undid it, and others have closed the round meanwhile: then it is STALE now.
            assert not missed, f"{sent.key} is said to be in {pulled}, and is not"
            missed = True
        self._end_life(sent.key[1])
        return End.FENCED, Anchor()

    async def _pushed(
        self, fragment: int, ranks: list[pb.PushHeader], payloads: list[bytes]
    ) -> pb.PushResponse:
        """Push with all ranks at once, and wait until every call has ended."""
        calls = [
            pushed(self._stub(fragment), _parts(header, payload), PUSH_S)
            for header, payload in zip(ranks, payloads, strict=True)
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers[0]  # pyright: ignore[reportReturnType]

    def _stub(self, fragment: int) -> Any:
        """The service that owns a fragment."""
        return self._stubs[self._owners[fragment]]

    async def _pull(self, fragment: int, revision: int) -> Anchor:
        """Pull exactly this revision, or the newest if it is gone, in whatever epoch it is now."""
        wanted: dict[str, Any] = {"revision": revision}
        while True:
            request = pb.PullRequest(
                run=RUN, replica=self.name, incarnation=self._incarnation, fragment=fragment,
                **wanted,
            )  # fmt: skip
            try:
                header, data = None, bytearray()
                async for part in self._stub(fragment).Pull(request, timeout=PULL_S):
                    if header is None:
                        header = part.header
                    else:
                        assert crc32c(part.chunk.data) == part.chunk.crc32c
                        data += part.chunk.data
            except grpc.aio.AioRpcError as error:
                if code_of(error) != "REVISION_GONE":
                    raise
                wanted = {"newest": True}
                continue
            assert header is not None
            self._ledger.pulled(fragment, header, bytes(data))
            self._ledger.heard(
                self.name, fragment, header.epoch, header.revision, header.committed_tokens
            )
            return Anchor(header.revision, header.epoch, crc32c(bytes(data)))

    async def _again(self, fragment: int, error: grpc.aio.AioRpcError) -> None:
        """Wait a moment before a call that failed is made again.

        Raises:
            AioRpcError: it failed in a way that no correct client may meet.
        """
        if code_of(error) == "RUN_UNKNOWN":
            await self._open(self._stub(fragment))
        elif not may_be_repeated(error):
            raise error
        await asyncio.sleep(AGAIN_S)

    async def _live(self, ended: int) -> None:
        """Begin a new life, unless another fragment has done so since ``ended``."""
        async with self._coming:
            if self._incarnation != ended:
                return
            answer = await self._http.post(f"/runs/{RUN}/replicas", json={"replica": self.name})
            self._incarnation = answer.raise_for_status().json()["incarnation"]
            self.lives += 1
            for stub in self._stubs:
                await self._opened(stub)

    async def _opened(self, stub: Any) -> None:
        """Open the run at a sync service, however often that is killed meanwhile."""
        while True:
            try:
                await self._open(stub)
                return
            except grpc.aio.AioRpcError as error:
                if not may_be_repeated(error) and code_of(error) != "RUN_UNKNOWN":
                    raise
                await asyncio.sleep(AGAIN_S)

    async def _open(self, stub: Any) -> None:
        layout = self._plan.layout.to_proto()
        await stub.OpenRun(
            pb.OpenRunRequest(
                run=RUN, replica=self.name, incarnation=self._incarnation, layout=layout
            ),
            timeout=15,
        )

    def _end_life(self, incarnation: int) -> None:
        for sent in self._ledger.sent.values():
            if sent.key[:2] == (self.name, incarnation) and sent.key not in self._ledger.committed:
                sent.has_ended = True

    async def _beat(self) -> None:
        """Keep the lease; a lost one is found out by the next push."""
        path = f"/runs/{RUN}/replicas/{self.name}/heartbeat"
        while True:
            await self._http.post(path, json={"incarnation": self._incarnation})
            await asyncio.sleep(self._plan.settings.timeouts.heartbeat_s / 2)


def _parts(header: pb.PushHeader, payload: bytes) -> Iterator[pb.PushRequest]:
    """The messages of one rank's push, in small chunks."""
    yield pb.PushRequest(header=header)
    codec = codec_of(header.codec)
    step = codec.size(CHUNK_GRAINS * codec.grain)
    for at in range(0, len(payload), step):
        data = payload[at : at + step]
        yield pb.PushRequest(chunk=pb.Chunk(data=data, crc32c=crc32c(data)))
