"""Headers of pushes: what is refused at one is told, and large ones that wait are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.parts import read_chunk
from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.reading import THING_BYTES
from syncline_testing.service import (
    Service,
    code_of,
    flat_layout,
    iter_push,
    rank_header,
    service,
)

RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)
SIZE = 1000
VALUES = np.ones(SIZE, np.float32)
BOXES = [pb.Box(offsets=[0], sizes=[SIZE]), *[pb.Box(offsets=[0], sizes=[0])] * 20_000]
HEADER_BYTES = THING_BYTES * len(BOXES)
REPLICAS = [f"r{i}" for i in range(6)]


def test_large_headers_count_as_long_as_their_pushes_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 60.0))

    async def scenario() -> None:
        held_max = 3 * HEADER_BYTES + (1 << 12)
        async with service(tmp_path, RULES, VALUES.nbytes, held_max) as s:
            await s.members(dict.fromkeys(["holder", *REPLICAS], 1))
            await s.open(flat_layout(SIZE), "holder")
            await s.offer(VALUES, "holder")
            holder = s.stub.Push(timeout=60)
            header = s.header(VALUES, "holder", base_revision=0)
            await holder.write(pb.PushRequest(header=header))
            await holder.initial_metadata()

            async def pushed(replica: str) -> str:
                header = s.header(VALUES, replica, base_revision=0, boxes=BOXES)
                try:
                    return str((await s.send(*iter_push(header, VALUES), timeout=60)).verdict)
                except grpc.aio.AioRpcError as error:
                    return code_of(error)

            fat: list[asyncio.Task[str]] = []
            async with asyncio.timeout(20):
                for at, replica in enumerate(REPLICAS):
                    fat.append(asyncio.create_task(pushed(replica)))
                    if at >= 3:
                        assert await fat[-1] == "OVERLOADED"
                        continue
                    while s.shared.budget.waiters <= at:
                        await asyncio.sleep(0.001)
            holder.cancel()
            answers = await asyncio.gather(*fat)
            assert sum(answer.isdigit() for answer in answers) == 3, "once there was room"

    asyncio.run(scenario())


def test_chunks_that_another_library_wrote_count_until_the_next_alone(tmp_path: Path) -> None:
    """They are protobuf, and not in our own form: so they are read as any other message."""
    values, unknown = np.ones(1 << 18, np.float32), b"\xc0\x3e\x01"

    async def scenario() -> None:
        async with service(tmp_path, RULES, held_max=values.nbytes // 2) as s:
            await s.members({"a": 1})
            await s.open(flat_layout(values.size), "a")
            await s.offer(values, "a")
            header = s.header(values, "a", base_revision=0)
            step, chunks = 1 << 16, list[pb.PushRequest]()
            for part in np.split(values, values.size // step):
                (chunk,) = list(iter_push(header, part))[1:]
                odd = chunk.SerializeToString() + unknown
                assert read_chunk(odd) is None
                chunks.append(pb.PushRequest.FromString(odd))
            assert sum(chunk.ByteSize() for chunk in chunks) > values.nbytes
            answer = await s.send(pb.PushRequest(header=header), *chunks)
            assert answer.verdict == pb.VERDICT_ACCEPTED

    asyncio.run(scenario())


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    "wrong", [{"boxes": [pb.Box(offsets=[SIZE - 1], sizes=[2])]}, {"codec": 99}]
)
def test_the_ranks_of_one_that_was_refused_are_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], is_first: bool
) -> None:
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 1.0))

    async def scenario() -> None:
        async with opened(tmp_path) as s:
            whole = s.header(VALUES, "a", base_revision=0)
            bad = s.header(VALUES, "a", base_revision=0, seq=whole.seq, rank=1, ranks=2, **wrong)
            if is_first:
                await refused(s, bad)
            call = await half_in(s, whole)
            if not is_first:
                await refused(s, bad)
            told = "rank 1 of 2 was refused, and did not come again for 1 s: (boxes|codec): "
            with pytest.raises(grpc.aio.AioRpcError, match=told) as error:
                await call
            assert code_of(error.value) == "INVALID_REQUEST"
            again = await s.push(VALUES, "a", base_revision=0)
            assert again.verdict == pb.VERDICT_ACCEPTED

    asyncio.run(scenario())


def test_a_header_of_no_member_is_nothing_to_a_members_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything kept of it: anybody may send as many as there are names."""
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 1.0))

    async def scenario() -> None:
        async with opened(tmp_path) as s:
            whole = s.header(VALUES, "a", base_revision=0)
            call = await half_in(s, whole)
            for given in ({"replica": "b"}, {"replica": "a", "incarnation": 2}):
                fields = {"seq": whole.seq, "rank": 1, "ranks": 2, "codec": 99, **given}
                await refused(s, s.header(VALUES, base_revision=0, **fields))
            staging = (await s.residence.run(s.run)).staging
            assert staging is not None and not staging._refused
            with pytest.raises(grpc.aio.AioRpcError, match="rank 1 of 2 did not come") as error:
                await call
            assert code_of(error.value) == "UNREACHABLE"

    asyncio.run(scenario())


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Service]:
    """A run of one replica at revision 0."""
    async with service(folder, RULES) as s:
        await s.members({"a": 1})
        await s.open(flat_layout(SIZE), "a")
        await s.offer(VALUES, "a")
        yield s


async def refused(s: Service, header: pb.PushHeader) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="boxes|codec") as error:
        await s.send(pb.PushRequest(header=header))
    assert code_of(error.value) == "INVALID_REQUEST"


async def half_in(s: Service, whole: pb.PushHeader) -> asyncio.Task[pb.PushResponse]:
    """The call of rank 0 of two, which is in and waits for the other."""
    header = rank_header(whole, 0, 2, 0, SIZE // 2)
    call = asyncio.create_task(s.send(*iter_push(header, VALUES[: SIZE // 2])))
    staging = (await s.residence.run(s.run)).staging
    assert staging is not None
    async with asyncio.timeout(20):
        while not any(staged.shards for staged in staging._staged.values()):
            await asyncio.sleep(0.001)
    return call
