"""Of the room for pushes no replica takes the share of the others, whoever comes first."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.service import flat_layout, service

SIZE, FRAGMENTS = 1000, 6
VALUES = np.full(SIZE, 0.5, np.float32)
RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)


def test_a_replica_that_has_taken_all_it_may_and_sends_nothing_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before it is cut."""
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 600.0))

    async def scenario() -> None:
        async with service(tmp_path, RULES, 3 * VALUES.nbytes) as s:
            await s.members({"hog": 1, "a": 1})
            await s.open(flat_layout(SIZE, FRAGMENTS), "a")
            for fragment in range(FRAGMENTS):
                await s.offer(VALUES, "a", fragment=fragment)
            calls = [s.stub.Push(timeout=60) for _ in range(FRAGMENTS)]
            for fragment, call in enumerate(calls):
                header = s.header(VALUES, "hog", fragment=fragment, base_revision=0)
                await call.write(pb.PushRequest(header=header))
            async with asyncio.timeout(20):
                while s.shared.budget.waiters < FRAGMENTS - 2:
                    await asyncio.sleep(0.001)
            assert s.shared.budget.used == 2 * VALUES.nbytes
            for fragment in range(FRAGMENTS):
                answer = await s.push(VALUES, "a", fragment=fragment, base_revision=0)
                assert answer.verdict == pb.VERDICT_ACCEPTED
            assert not any(call.done() for call in calls)
            for call in calls:
                call.cancel()

    asyncio.run(scenario())
