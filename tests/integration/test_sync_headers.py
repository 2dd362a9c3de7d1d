"""Large headers of pushes are bounded as long as these wait for room; their chunks are not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import numpy as np
import pytest

from syncline_proto.parts import read_chunk
from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.service import code_of, flat_layout, iter_push, service

RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)
SIZE = 1000
VALUES = np.ones(SIZE, np.float32)
BOXES = [pb.Box(offsets=[0], sizes=[SIZE]), *[pb.Box(offsets=[0], sizes=[0])] * 20_000]
HEADER_BYTES = pb.PushHeader(boxes=BOXES).ByteSize()
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
