"""Calls that come faster than the service takes them up wait; none is thrown away."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.service import RUN, flat_layout, service

CALLS = 4000
"""More than gRPC keeps for a busy service if it is not told to."""

VALUES = np.full(10, 0.5, np.float32)
RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)


def test_a_burst_of_pulls_that_finds_the_service_busy_is_answered_to_the_last(
    tmp_path: Path,
) -> None:
    request = pb.PullRequest(run=RUN, fragment=0, revision=1, header_only=True)

    def begun(channel: grpc.Channel) -> list[Any]:
        stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
        return [stub.Pull(request, timeout=120) for _ in range(CALLS)]

    def revisions(calls: list[Any]) -> set[int]:
        return {next(call).header.revision for call in calls}

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await s.members({"a": 1})
            await s.open(flat_layout(VALUES.size), "a")
            await s.offer(VALUES, "a")
            with grpc.insecure_channel(s.address) as channel, ThreadPoolExecutor(1) as aside:
                calls = aside.submit(begun, channel).result()  # the service's loop waits, too
                waiting = asyncio.get_running_loop().run_in_executor(aside, revisions, calls)
                await s.push(VALUES, "a", base_revision=0)
                assert await waiting == {1}

    asyncio.run(scenario())
