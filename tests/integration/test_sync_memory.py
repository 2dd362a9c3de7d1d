"""What the sync service's memory grows with: the model, and not the replicas that push it."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.codec import chunks, encode
from syncline_proto.parts import write_chunk
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_sync import lingering
from syncline_sync.slabs import SLAB_BYTES
from syncline_testing.cluster import Cluster
from syncline_testing.service import RUN, flat_layout, service

FRAGMENTS, NUMEL, ROUNDS = 2, 1 << 23, 2
LAYOUT = flat_layout(NUMEL, FRAGMENTS)
PUSH_BYTES = PULL_BYTES = 2 * NUMEL
"""Of a fragment: in bf16."""
HALF_S = 5.0
"""How long a push that stays half a one is under way."""
ROOM = 1 << 20
"""The smallest budget: the push of one fragment (16 MiB) has room, all others wait for it."""


def sent(codec: pb.Codec.ValueType) -> list[pb.PushRequest]:
    """The chunks of one fragment's push; the same ones for every replica and fragment."""
    values = encode(np.full(NUMEL, 1e-3, np.float32), codec)
    return [pb.PushRequest.FromString(write_chunk(chunk)) for chunk in chunks(values, codec)]


async def push(
    stub: Any, begun: asyncio.Barrier, parts: list[pb.PushRequest], **header: Any
) -> None:
    """Push a fragment; its chunks wait until all pushes of the round have begun, and for room."""
    boxes = [LAYOUT.fragments[header["fragment"]].boxes[0].to_proto()]
    usual = {"run": RUN, "epoch": 1, "incarnation": 1, "ranks": 1, "inner_steps": 1, "tokens": 1}
    head = pb.PushHeader(boxes=boxes, **usual, **header)

    async def messages() -> AsyncIterator[pb.PushRequest]:
        yield pb.PushRequest(header=head)
        await begun.wait()
        await call.initial_metadata()
        for part in parts:
            yield part

    call = stub.Push(messages(), timeout=60)
    answer = await call
    assert answer.verdict == pb.VERDICT_ACCEPTED, answer


async def half(stub: Any, parts: list[pb.PushRequest], has_patience: bool, **header: Any) -> None:
    """Push the first half of a fragment, with or without room for it, and no more until the end."""
    boxes = [LAYOUT.fragments[header["fragment"]].boxes[0].to_proto()]
    usual = {"run": RUN, "epoch": 1, "incarnation": 1, "ranks": 1, "inner_steps": 1, "tokens": 1}
    head = pb.PushHeader(boxes=boxes, kind=pb.PUSH_KIND_PSEUDO_GRADIENT, **usual, **header)

    async def messages() -> AsyncIterator[pb.PushRequest]:
        yield pb.PushRequest(header=head)
        if has_patience:
            await call.initial_metadata()
        for part in parts[: len(parts) // 2]:
            yield part
        await asyncio.Event().wait()

    call = stub.Push(messages(), timeout=HALF_S)
    with pytest.raises(grpc.aio.AioRpcError):
        await call


async def pull(stub: Any, fragment: int, revision: int) -> None:
    """Pull a value, once it is published, and throw it away."""
    wanted = pb.PullRequest(run=RUN, fragment=fragment, revision=revision)
    sizes = [len(part.chunk.data) async for part in stub.Pull(wanted, timeout=60)]
    assert sum(sizes) == PULL_BYTES


async def rounds(address: str, replicas: list[str]) -> None:
    """Whole rounds of all replicas, each on a connection of its own: all calls of one at once."""
    offered, pushed = sent(pb.CODEC_FP32), sent(pb.CODEC_BF16)
    async with AsyncExitStack() as stack:
        stubs: dict[str, Any] = {}
        for replica in replicas:
            alone = (("grpc.use_local_subchannel_pool", 1),)
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(address, options=alone)
            )
            stubs[replica] = stub = sync_pb2_grpc.SyncServiceStub(channel)
            await stub.OpenRun(
                pb.OpenRunRequest(
                    run=RUN, replica=replica, incarnation=1, layout=LAYOUT.to_proto()
                ),
                timeout=60,
            )
        first = stubs[replicas[0]]

        fragments = range(FRAGMENTS)
        begun = asyncio.Barrier(FRAGMENTS)
        offer: dict[str, Any] = {"kind": pb.PUSH_KIND_PARAMETERS, "codec": pb.CODEC_FP32}
        await asyncio.gather(
            *(
                push(first, begun, offered, replica=replicas[0], fragment=f, seq=1, **offer)
                for f in fragments
            )
        )
        await asyncio.gather(*(pull(first, f, 0) for f in fragments))
        for base in range(ROUNDS):
            begun = asyncio.Barrier(FRAGMENTS * len(replicas))
            step: dict[str, Any] = {
                "kind": pb.PUSH_KIND_PSEUDO_GRADIENT,
                "codec": pb.CODEC_BF16,
                "base_revision": base,
                "seq": base + 2,
            }
            await asyncio.gather(
                *(
                    push(stub, begun, pushed, replica=replica, fragment=f, **step)
                    for replica, stub in stubs.items()
                    for f in fragments
                ),
                *(pull(stub, f, base + 1) for stub in stubs.values() for f in fragments),
            )


async def halves(cluster: Cluster, replicas: list[str]) -> int:
    """How much more memory the service takes while replicas push halves at once, in bytes."""
    async with grpc.aio.insecure_channel(cluster.sync_address) as channel:
        stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
        opening = pb.OpenRunRequest(
            run=RUN, replica=replicas[0], incarnation=1, layout=LAYOUT.to_proto()
        )
        await stub.OpenRun(opening, timeout=60)
        offer: dict[str, Any] = {"kind": pb.PUSH_KIND_PARAMETERS, "codec": pb.CODEC_FP32, "seq": 1}
        for f in range(FRAGMENTS):
            alone = asyncio.Barrier(1)
            offered = sent(pb.CODEC_FP32)
            await push(stub, alone, offered, replica=replicas[0], fragment=f, **offer)
            await pull(stub, f, 0)
        process = Path(f"/proc/{cluster.sync.pid}")
        (process / "clear_refs").write_text("5")  # the peak is what there is now
        before = memory_of(process, "VmHWM")
        step: dict[str, Any] = {"codec": pb.CODEC_BF16, "base_revision": 0, "seq": 2}
        parts = sent(pb.CODEC_BF16)
        await asyncio.gather(
            *(
                half(stub, parts, bool(number % 4), replica=replica, fragment=f, **step)
                for number, replica in enumerate(replicas)
                for f in range(FRAGMENTS)
            )
        )
        return memory_of(process, "VmHWM") - before


def memory_of(process: Path, what: str) -> int:
    """A line of /proc/PID/status, in bytes."""
    told = (process / "status").read_text()
    found = re.search(rf"^{what}:\s+(\d+) kB$", told, flags=re.MULTILINE)
    assert found
    return int(found[1]) << 10


def register(cluster: Cluster, replicas: list[str]) -> None:
    timeouts = {"lease": 600, "round_deadline": 3600}  # nobody sends heartbeats here
    settings = {"strategy": "local-sgd", "min_replicas": len(replicas), "timeouts": timeouts}
    cluster.post("/runs", {"name": RUN, "settings": settings})
    for replica in replicas:
        cluster.post(f"/runs/{RUN}/replicas", {"replica": replica})


def peak_bytes(folder: Path, count: int) -> int:
    """The most memory that a sync service of its own ever had in rounds of so many replicas."""
    folder.mkdir()
    replicas = [f"r{i}" for i in range(count)]
    with Cluster(folder, "--staging-bytes", str(ROOM)) as cluster:
        register(cluster, replicas)
        asyncio.run(rounds(cluster.sync_address, replicas))
        return memory_of(Path(f"/proc/{cluster.sync.pid}"), "VmHWM")


def test_a_push_leaves_nothing_in_memory_once_it_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its round is open: what that holds after 2 of 8 pushes it holds after 7."""
    push = np.full(3 * SLAB_BYTES // 8, 1e-3, np.float32)  # one slab, and half of another
    names = [f"r{i}" for i in range(8)]
    settings = RunSettings.model_validate(
        {"strategy": "local-sgd", "min_replicas": 8, "codec": {"up": "fp32", "down": "fp32"}}
    )
    idle, held = list[int](), list[int]()
    monkeypatch.setattr(lingering, "LINGER_S", 0.0)

    async def scenario() -> None:
        async with service(tmp_path, settings) as s:
            await s.members(dict.fromkeys(names, 1))
            await s.open(flat_layout(push.size), names[0])
            await s.offer(np.zeros_like(push), names[0])
            await s.pull(revision=0)
            for base in range(2):
                for name in names:
                    await s.push(push, name, base_revision=base)
                    while s.shared.budget.used:  # the first one may wait for the second
                        await asyncio.sleep(0.005)
                    if base == 1:
                        gc.collect()
                        idle.append(s.shared.slabs.idle)
                        held.append(tracemalloc.get_traced_memory()[0])
                await s.pull(revision=base + 1)
                tracemalloc.start()  # what comes once has come with the first round

    try:
        asyncio.run(scenario())
    finally:
        tracemalloc.stop()
    assert set(idle) == {SLAB_BYTES}
    # What the last push left may go with the next one; of five more nothing stays.
    assert held[6] - held[1] < 2 * push.nbytes, [size >> 20 for size in held]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_six_more_replicas_cost_less_than_half_a_fragments_push_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is 48 MiB; kept until it is folded, what six push of both fragments would be 192.

    Twelve more pulls have chunks of 1 MiB, which are in memory twice: 24 MiB; and a peak is not the
    same twice, so the lower of two counts. Pulls weigh more here than beside a larger model, where
    `benchmarks/memory.py` takes the ratio that is asked.
    """
    # The peak shall be what the service holds, not what threads' arenas keep of what was freed.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    few, many = (
        min(peak_bytes(tmp_path / f"{count}-{again}", count) for again in range(2))
        for count in (2, 8)
    )
    more = 6 * PUSH_BYTES // 2
    assert many - few < more, f"{few >> 20} MiB with 2, {many >> 20} MiB with 8"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_many_that_push_halves_take_the_room_of_the_budget_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 replicas' 32 pushes one has room; without a bound their halves would be 256 MiB.

    A quarter of them send without a word that they may, and are ended with what has come by then.
    """
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    replicas = [f"r{i}" for i in range(16)]
    with Cluster(tmp_path, "--staging-bytes", str(ROOM)) as cluster:
        register(cluster, replicas)
        more = asyncio.run(halves(cluster, replicas))
    assert more < 5 * PUSH_BYTES, f"{more >> 20} MiB"
