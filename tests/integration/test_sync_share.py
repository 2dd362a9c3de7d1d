"""Of the room for pushes no replica, and no run, takes the share of others, whoever comes first."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.reports import EventIn
from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget
from syncline_sync.core.record import Judgement
from syncline_sync.staging import Staging
from syncline_testing.service import flat_layout, service
from syncline_testing.staging import BYTES, LAYOUT, header, joined, run, sent

SIZE, FRAGMENTS = 1000, 9
VALUES = np.full(SIZE, 0.5, np.float32)
RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)


@pytest.mark.parametrize("hogs", [1, 2, 3])
def test_replicas_that_have_taken_all_they_may_and_send_nothing_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hogs: int
) -> None:
    """Long before they are cut, where there is room for 3, 7 or 15 of the largest pushes."""
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 600.0))

    async def scenario() -> None:
        room = (1 << hogs + 1) - 1
        names = [f"hog-{i}" for i in range(hogs)]
        async with service(tmp_path, RULES, room * VALUES.nbytes) as s:
            await s.members(dict.fromkeys([*names, "a"], 1))
            await s.open(flat_layout(SIZE, FRAGMENTS), "a")
            for fragment in range(FRAGMENTS):
                await s.offer(VALUES, "a", fragment=fragment)
            calls = [s.stub.Push(timeout=60) for _ in range(hogs * FRAGMENTS)]
            asked = [(name, fragment) for name in names for fragment in range(FRAGMENTS)]
            for call, (name, fragment) in zip(calls, asked, strict=True):
                header = s.header(VALUES, name, fragment=fragment, base_revision=0)
                await call.write(pb.PushRequest(header=header))
            async with asyncio.timeout(20):
                while s.shared.budget.waiters + s.shared.budget.used // VALUES.nbytes < len(calls):
                    await asyncio.sleep(0.001)
            assert s.shared.budget.used == (room - 1) * VALUES.nbytes
            for fragment in range(FRAGMENTS):
                answer = await s.push(VALUES, "a", fragment=fragment, base_revision=0)
                assert answer.verdict == pb.VERDICT_ACCEPTED
            assert not any(call.done() for call in calls)
            for call in calls:
                call.cancel()

    asyncio.run(scenario())


def test_a_run_of_many_replicas_does_not_keep_another_run_out() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        held, _ = sent(staging, header("a"))
        sent(staging, header("b"))
        waits, _ = joined(staging, header("c"))
        other, _ = joined(Staging("other", LAYOUT, budget), header("d"))
        staging.settle(held, Judgement(verdict=pb.VERDICT_ACCEPTED, result=1))
        assert other.reservation.granted.done()
        assert not waits.reservation.granted.done(), "its run holds room already"

    run(scenario, limit=2 * BYTES)


@pytest.mark.parametrize("lacks", [0, 1])
def test_an_operator_hears_of_too_little_room_and_how_much_would_do(
    tmp_path: Path, lacks: int
) -> None:
    """When a run begins, and again when a service comes back to it."""
    enough = 3 * VALUES.nbytes

    async def told() -> list[EventIn]:
        async with service(tmp_path, RULES, enough - lacks) as s:
            for _ in range(2):
                await s.members({"a": 1})
                await s.open(flat_layout(SIZE), "a")
            return [one for one in s.reports if isinstance(one, EventIn)]

    for _ in range(2):
        events = asyncio.run(told())
        assert [event.kind for event in events] == ["run.little_room"] * lacks
        assert all(f"--staging-bytes {enough} or more" in event.message for event in events)
