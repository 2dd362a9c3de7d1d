"""A real sync service in this process, its membership set by hand, and a small client for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from syncline_proto.codec import Float32, chunks, decode, encode
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.owners import Seat
from syncline_proto.parts import write_chunk
from syncline_proto.rest import (
    Member,
    Membership,
    Origin,
    RunMembership,
    RunState,
)
from syncline_proto.settings import RunSettings
from syncline_proto.status import ROOM_HEADER
from syncline_proto.v1 import checkpoints_pb2_grpc, sync_pb2_grpc
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget
from syncline_sync.checkpoints import CheckpointServicer
from syncline_sync.disk import Disk
from syncline_sync.host import Host
from syncline_sync.lull import Lull
from syncline_sync.metrics import Metrics
from syncline_sync.pool import shut_down
from syncline_sync.reading import HELD_MAX, Reader
from syncline_sync.report_queue import Told
from syncline_sync.residence import Residence
from syncline_sync.servicer import SyncServicer
from syncline_sync.serving import CHANNEL_OPTIONS
from syncline_sync.shared import Shared
from syncline_sync.slabs import Slabs
from syncline_sync.statuses import Statuses

RUN = "run"

ALONE = Seat()

BROKEN, BROKEN_MAX = "Internal error from Core", 10
"""What grpc.aio says in place of the status of a call that ends while it is sending: ask again."""


def flat_layout(numel: int = 10, fragments: int = 1) -> Layout:
    """A layout of one vector per fragment."""
    return Layout(
        tuple(TensorSpec(f"w{i}", (numel,), "float32") for i in range(fragments)),
        tuple(FragmentSpec(f"f{i}", (Box(i, (0,), (numel,)),)) for i in range(fragments)),
    )


@dataclass
class Service:
    """One life of a sync service over a folder."""

    host: Host
    residence: Residence
    address: str
    stub: Any
    checkpoints: Any
    """The stub of CheckpointService."""
    settings: RunSettings
    shared: Shared
    reports: list[Told]
    faults: list[BaseException | None]
    server: grpc.aio.Server
    seqs: dict[tuple[str, int, int], int] = field(default_factory=dict)
    version: int = 0
    run: str = RUN
    origin: Origin | None = None
    """The checkpoint from which the run began."""

    async def members(
        self,
        members: Mapping[str, int],
        state: RunState = RunState.RUNNING,
        phase: tuple[int, bool] = (0, False),
        settling: int = 0,
    ) -> None:
        """Say who holds a lease, as the control plane would, and how the phase stands."""
        self.version += 1
        run = RunMembership(
            run=self.run,
            state=state,
            settings=self.settings,
            settings_version=1,
            members=[Member(replica=r, incarnation=i) for r, i in members.items()],
            origin=self.origin,
            phase=phase[0],
            phase_ended=phase[1],
            settling=settling,
        )
        await self.follow(Membership(version=self.version, runs=[run]))

    async def follow(self, membership: Membership) -> None:
        """Have the service follow this word, and wait until all of it counts."""
        await self.host.follow(membership)
        await self.host.caught_up()

    async def open(self, layout: Layout, replica: str, incarnation: int = 1) -> pb.OpenRunResponse:
        return await self.stub.OpenRun(
            pb.OpenRunRequest(
                run=self.run, replica=replica, incarnation=incarnation, layout=layout.to_proto()
            )
        )

    async def push(self, values: Float32, replica: str, **header: Any) -> pb.PushResponse:
        """Push a whole fragment (or, with ``boxes``, a shard) as one rank."""
        parts = iter_push(self.header(values, replica, **header), values)
        return await pushed(self.stub, parts)

    async def push_ranks(
        self, values: Float32, replica: str, edges: Sequence[int], **header: Any
    ) -> list[pb.PushResponse]:
        """Push a whole fragment of one vector by several ranks at once, cut at ``edges``."""
        whole = self.header(values, replica, **header)
        cuts = list(itertools.pairwise((0, *edges, values.size)))
        return await asyncio.gather(
            *(
                pushed(self.stub, iter_push(rank_header(whole, rank, len(cuts), a, b), values[a:b]))
                for rank, (a, b) in enumerate(cuts)
            )
        )

    async def send(self, *parts: pb.PushRequest, timeout: float | None = 20) -> pb.PushResponse:
        """Push these very messages, whatever they are."""
        return await pushed(self.stub, iter(parts), timeout)

    async def status(self) -> pb.GetRunStatusResponse:
        return await self.stub.GetRunStatus(pb.GetRunStatusRequest(run=self.run), timeout=20)

    def header(self, values: Float32, replica: str, **given: Any) -> pb.PushHeader:
        given.setdefault("incarnation", 1)
        given.setdefault("fragment", 0)
        key = (replica, given["incarnation"], given["fragment"])
        if "seq" not in given:
            given["seq"] = self.seqs[key] = self.seqs.get(key, 0) + 1
        defaults: dict[str, Any] = {
            "run": self.run,
            "epoch": 1,
            "ranks": 1,
            "kind": pb.PUSH_KIND_PSEUDO_GRADIENT,
            "codec": pb.CODEC_FP32,
            "inner_steps": 1,
            "tokens": 1,
            "boxes": [Box(given["fragment"], (0,), (values.size,)).to_proto()],
        }
        return pb.PushHeader(replica=replica, **{**defaults, **given})

    async def offer(self, values: Float32, replica: str, **header: Any) -> pb.PushResponse:
        return await self.push(values, replica, kind=pb.PUSH_KIND_PARAMETERS, **header)

    async def pull(self, **wanted: Any) -> tuple[pb.PullHeader, Float32]:
        """Pull as an observer: the header and the decoded values."""
        wanted = {"run": self.run, "fragment": 0, **wanted}
        header, parts = None, []
        async for part in self.stub.Pull(pb.PullRequest(**wanted), timeout=20):
            if part.HasField("header"):
                header = part.header
            else:
                parts.append(part.chunk.data)
        assert header is not None
        return header, decode(b"".join(parts), header.codec)


async def pushed(
    stub: Any, parts: Iterable[pb.PushRequest], timeout: float | None = 20
) -> pb.PushResponse:
    """Push these messages as a client should: what follows the first once there is room for it."""
    parts = list(parts)

    async def messages(begun: asyncio.Future[Any]) -> AsyncIterator[pb.PushRequest]:
        for at, part in enumerate(parts):
            if at and ROOM_HEADER not in await (await begun).initial_metadata():
                return
            yield part

    for _ in range(BROKEN_MAX):
        begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call = stub.Push(messages(begun), timeout=timeout)
        begun.set_result(call)
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            if error.details() != BROKEN:
                raise
    raise AssertionError(f"the client said {BROKEN_MAX} times: {BROKEN}")


def rank_header(
    whole: pb.PushHeader, rank: int, ranks: int, start: int, stop: int
) -> pb.PushHeader:
    """The header of one rank that holds ``start`` to ``stop`` of a fragment of one vector."""
    mine = pb.PushHeader()
    mine.CopyFrom(whole)
    mine.rank, mine.ranks = rank, ranks
    del mine.boxes[:]
    if stop > start:
        mine.boxes.append(Box(whole.fragment, (start,), (stop - start,)).to_proto())
    return mine


def code_of(error: grpc.aio.AioRpcError) -> str:
    """Our own code of a failed call; empty if it carries none."""
    return str(dict(error.trailing_metadata() or ()).get("syncline-code", ""))


def iter_push(header: pb.PushHeader, values: Float32) -> Iterable[pb.PushRequest]:
    """The messages of one push, in order."""
    yield pb.PushRequest(header=header)
    payload = encode(np.ascontiguousarray(values, np.float32), header.codec)
    for chunk in chunks(payload, header.codec):
        yield pb.PushRequest.FromString(write_chunk(chunk))


@contextlib.asynccontextmanager
async def service(
    root: Path,
    settings: RunSettings,
    staging_bytes: int = 1 << 30,
    held_max: int = HELD_MAX,
    seat: Seat = ALONE,
) -> AsyncIterator[Service]:
    """Serve the folder ``root`` on a free port until the block ends; then everything stops."""
    root.mkdir(parents=True, exist_ok=True)  # as a start does
    reports: list[Told] = []
    faults: list[BaseException | None] = []
    pool, disk = ThreadPoolExecutor(2), Disk()

    def report(_run: str, what: Told) -> int:
        reports.append(what)
        return len(reports) - 1

    shared = Shared(
        root=root,
        pool=pool,
        disk=disk,
        budget=Budget(staging_bytes),
        metrics=Metrics(),
        report=report,
        fail=faults.append,
        slabs=Slabs(),
        seat=seat,
        vote=lambda: None,
        settled=lambda: 0,
        lull=Lull(),
        is_replaced=lambda: False,
    )
    residence = Residence(shared)
    host = Host(residence, shared)
    doorkeepers = [Statuses(shared.fail), Reader(held_max)]
    server = grpc.aio.server(interceptors=doorkeepers, options=CHANNEL_OPTIONS)
    servicer = SyncServicer(host, residence, shared)
    sync_pb2_grpc.add_SyncServiceServicer_to_server(servicer, server)
    checkpoints = CheckpointServicer(residence, shared)
    checkpoints_pb2_grpc.add_CheckpointServiceServicer_to_server(checkpoints, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
    kept: Any = checkpoints_pb2_grpc.CheckpointServiceStub(channel)
    try:
        address = f"127.0.0.1:{port}"
        yield Service(
            host, residence, address, stub, kept, settings, shared, reports, faults, server
        )
    finally:
        await channel.close()
        await server.stop(0)
        await checkpoints.close()
        await residence.stop()
        assert shut_down((pool, *disk.pools), 60), "no thread is left"
