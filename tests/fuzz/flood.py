"""A sync service of its own process under a flood of malformed calls, and the memory it takes.

Many calls at once: what ``streams`` and ``requests`` draw, and what is made to cost memory
(``hogs``). The most that it takes has a bound, by how many are at it at once; and the same flood
once more leaves nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from fuzz import arena, asking, hogs
from fuzz.arena import HARMLESS, START
from fuzz.asking import METHOD
from fuzz.hogs import MESSAGE_BYTES
from fuzz.requests import Request, openings, pulls
from fuzz.streams import LAYOUT, REVISION, RUN, Stream, header, pushes
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.at_rest import GIVE_BACK
from syncline_testing.cluster import Cluster
from syncline_testing.service import BROKEN, code_of, iter_push

Call: TypeAlias = Stream | Request

TOLD = {*arena.REFUSALS, *asking.REFUSALS, "UNREACHABLE"}

BUDGET = 1 << 20
"""The smallest that can be set: everything else is the constant."""

REPLICAS = ("b", "a", "third")

DRAWN = 300
"""Streams that a flood is made of, besides those that are made to cost memory."""

CALLERS = 64
"""Most wait: for what does not come, or for a run that nobody knows."""

CALL_S = 2.0

HOGS = 8
"""As many of the callers send what is made to cost memory."""

EACH_HOG, EACH_DRAWN = 2, 2
"""How often each of these calls is in a pass, and each of the others."""

GROWTH = 48 << 20
"""Bytes that a service at rest may hold more after its second flood than after its first.

Of one and the same traffic, so what is kept of each malformed call shows: a pass has 800 that are
refused. 30 passes, some on a busy machine, left 225 to 263 MiB, one up to 26 more than the one
before it, or 20 less: pieces in which something small is in use go back to nobody.
"""

CONSTANT = (210 + HOGS * (2 * (MESSAGE_BYTES >> 20) + 1) + 4 * 16 + 2 * 32) << 20
"""Bytes that the service may take beyond its budget and what it holds at rest: 474 MiB.

One message is read at a time: the worst is a layout of nothing but empty tensors, 4 Mi of them, 210
MiB until it is refused (of boxes 112). Each hog may have a message of the largest size in gRPC's
hands, and once more as Python's; or else it is a pull of 100,000 boxes, of 1 MiB, which is there
twice and 15 once it is read. The other calls' are small. Four threads of the pool work on 16 MiB
each. The allocator keeps 32 MiB of what is free again in each of its two arenas. What a shard falls
into is nothing: the tensors are small.

Near the peak of two passes 304 MiB were in the allocator's main arena (what has been read), 40 in
whole messages, and 53 in its other arena (gRPC's).
"""

PIECES, PIECES_LONG = 48 << 20, 97 << 20
"""Beyond that there is free memory between what is in use: of two passes, and of minutes of them.

Two passes, on a busy machine, took 381 to 436 MiB in all, so these 48 are slack; floods of one to
two minutes 457 to 543, the more the quieter the machine.
"""

SETTINGS = {
    "strategy": "local-sgd",
    "min_replicas": 3,  # and the third is not heard of again: no round closes, whatever enters it
    "codec": {"up": "fp32", "down": "fp32"},
    "timeouts": {"lease": 3600, "round_deadline": 7200},  # nobody sends heartbeats here
}


@dataclass(slots=True)
class Figures:
    """What a flood came to; bytes are of resident memory."""

    calls: int = 0
    refused: int = 0
    rest_bytes: int = 0
    peak_bytes: int = 0
    rests: tuple[int, int] = (0, 0)
    """After each of two floods; what is free has been given back then."""

    @property
    def beyond_bytes(self) -> int:
        """What was taken beyond the budget and what the service holds at rest."""
        return self.peak_bytes - self.rest_bytes - BUDGET

    @property
    def growth_bytes(self) -> int:
        """What the second flood left, over what the first had left."""
        return self.rests[1] - self.rests[0]


def drawn(number: int) -> list[Call]:
    """Some of the calls of a seed."""
    found: list[Call] = []

    @seeded(number)
    @settings(
        max_examples=DRAWN,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(pushes(), pulls(), openings())
    def keep(streams: tuple[Stream, ...], pull: Request, opening: Request) -> None:
        found.extend((*streams, pull, opening))

    keep()
    return found


def flooded(
    folder: Path, drawn: list[Call], seed: int, seconds: float = 0.0, pieces: int = PIECES
) -> Figures:
    """Flood a service twice; then nothing of it is another, and it answers as before.

    The first takes so long, and a pass at least; the second has the very same calls.
    """
    cluster = Cluster(folder, "--staging-bytes", str(BUDGET))
    cluster.sync.rests()
    with cluster:
        cluster.post("/runs", {"name": RUN, "settings": SETTINGS})
        for replica in REPLICAS:
            cluster.post(f"/runs/{RUN}/replicas", {"replica": replica})
        figures = asyncio.run(_flooded(cluster, drawn, seed, seconds))
        figures.peak_bytes = _memory(cluster, "VmHWM")
    assert figures.beyond_bytes <= CONSTANT + pieces, figures
    assert figures.growth_bytes <= GROWTH, figures
    return figures


async def _flooded(cluster: Cluster, drawn: list[Call], seed: int, seconds: float) -> Figures:
    figures = Figures()
    async with grpc.aio.insecure_channel(cluster.sync_address) as channel:
        stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
        await _begin(stub)
        await _unharmed(stub)
        figures.rest_bytes = _memory(cluster, "VmRSS")
        worst: list[Call] = [*hogs.streams(), *hogs.requests(), *hogs.compressed()] * EACH_HOG
        each = EACH_DRAWN * drawn
        dice, until, passes = random.Random(seed), time.monotonic() + seconds, 0
        while not passes or time.monotonic() < until:
            await _pass(cluster.sync_address, each, worst, dice, figures)
            passes += 1
        after = await _at_rest(cluster, stub)
        dice = random.Random(seed)
        for _ in range(passes):
            await _pass(cluster.sync_address, each, worst, dice, figures)
        figures.rests = after, await _at_rest(cluster, stub)
        await _unharmed(stub)
    return figures


async def _begin(stub: Any) -> None:
    """A run of one revision, and one before it."""
    for one in REPLICAS:  # each waits until the service has heard of its lease
        opening = pb.OpenRunRequest(run=RUN, replica=one, incarnation=1, layout=LAYOUT.to_proto())
        await stub.OpenRun(opening, timeout=20)
    for i, start in enumerate(START):
        boxes = [box.to_proto() for box in LAYOUT.fragments[i].boxes]
        offer = {"kind": pb.PUSH_KIND_PARAMETERS, "replica": "b", "base_revision": None}
        zeros = [{"replica": one, "seq": 2, "base_revision": 0} for one in REPLICAS]
        for named in ({**offer, "seq": 1}, *zeros):
            head = header(i, pb.CODEC_FP32, **named)
            head.boxes.extend(boxes)
            values = start if named["seq"] == 1 else np.zeros_like(start)
            answer = await stub.Push(iter(list(iter_push(head, values))), timeout=20)
            assert answer.verdict == pb.VERDICT_ACCEPTED, answer
        pull = pb.PullRequest(run=RUN, fragment=i, revision=REVISION, header_only=True)
        _ = [part async for part in stub.Pull(pull, timeout=20)]


async def _pass(
    address: str, drawn: list[Call], worst: list[Call], dice: random.Random, figures: Figures
) -> None:
    """Send each call once, many at a time."""
    heavy, light = (iter(dice.sample(calls, len(calls))) for calls in (worst, drawn))
    # A connection for each: no call waits for another one's line.
    alone = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    channels = [grpc.aio.insecure_channel(address, options=alone) for _ in range(CALLERS)]

    async def caller(one: grpc.aio.Channel, calls: Iterator[Call], is_heavy: bool) -> None:
        for call in calls:
            await _sent(one, call, figures)
            if is_heavy:  # a call that its caller has given up may still be in the service's hands
                await _status(sync_pb2_grpc.SyncServiceStub(one))

    await asyncio.gather(
        *(caller(one, heavy, True) for one in channels[:HOGS]),
        *(caller(one, light, False) for one in channels[HOGS:]),
    )
    for one in channels:
        await one.close()


async def _at_rest(cluster: Cluster, stub: Any) -> int:
    """What the service holds once its calls are over and what is free has gone back."""
    await _status(stub)
    os.kill(cluster.sync.pid, GIVE_BACK)
    await _status(stub)  # is answered by the thread that has heard it
    return _memory(cluster, "VmRSS")


async def _sent(channel: grpc.aio.Channel, call: Call, figures: Figures) -> None:
    figures.calls += 1
    task = asyncio.current_task()
    try:
        if isinstance(call, Stream):
            await _pushed(channel, call)
        else:
            await _asked(channel, call)
    except asyncio.CancelledError:
        if task is None or task.cancelling():
            raise  # else gRPC itself, whose call ended while it took the next message
    except grpc.aio.AioRpcError as error:
        # The deadline is the caller's own.
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED and error.details() != BROKEN:
            figures.refused += 1
            if call.is_compressed:  # gRPC's own word
                assert error.code() is grpc.StatusCode.UNIMPLEMENTED, repr(error)
            else:
                assert code_of(error) in TOLD, repr(error)


async def _pushed(channel: Any, stream: Stream) -> None:
    over = asyncio.Event()

    async def messages() -> Any:
        for message in stream.messages:
            yield message
        if stream.ending != "end":
            await over.wait()

    try:
        push = channel.stream_unary(METHOD + "Push")
        call = push(messages(), timeout=CALL_S, compression=_compression(stream))
        answer = pb.PushResponse.FromString(await call)
        assert answer.verdict in {*HARMLESS, pb.VERDICT_ACCEPTED, pb.VERDICT_ANOMALOUS}, answer
    finally:
        over.set()


async def _asked(channel: Any, request: Request) -> None:
    path, how = METHOD + request.method, {"timeout": CALL_S, "compression": _compression(request)}
    if request.method == "Pull":
        async for _ in channel.unary_stream(path)(request.data, **how):
            if request.is_cut:
                return
    else:
        await channel.unary_unary(path)(request.data, **how)


def _compression(call: Call) -> grpc.Compression:
    return grpc.Compression.Gzip if call.is_compressed else grpc.Compression.NoCompression


async def _unharmed(stub: Any) -> None:
    """The run stands where it stood, with the parameters that were offered, bit for bit."""
    status = await _status(stub)
    assert [f.revision for f in status.fragments] == [REVISION, REVISION]
    for i, start in enumerate(START):
        request = pb.PullRequest(run=RUN, fragment=i, newest=True)
        parts = [part async for part in stub.Pull(request, timeout=20)]
        data = b"".join(part.chunk.data for part in parts[1:])
        assert np.frombuffer(data, np.float32).tobytes() == start.tobytes()


async def _status(stub: Any) -> pb.GetRunStatusResponse:
    return await stub.GetRunStatus(pb.GetRunStatusRequest(run=RUN), timeout=60)


def _memory(cluster: Cluster, what: str) -> int:
    """Resident memory of the sync service in bytes: ``VmRSS``, or the most so far, ``VmHWM``."""
    told = Path(f"/proc/{cluster.sync.pid}/status").read_text()
    found = re.search(rf"^{what}:\s+(\d+) kB$", told, flags=re.MULTILINE)
    assert found
    return int(found[1]) << 10
