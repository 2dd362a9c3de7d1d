"""Heartbeats that come together go together, and each still stands or falls alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from syncline_control.operations import points, replicas, runs
from syncline_control.pulse import Pulse
from syncline_control.state import State
from syncline_proto.errors import LeaseLost, ReplicaUnknown, RunUnknown
from syncline_proto.rest import Heartbeat, LossPoint, Progress, ReplicaRegister, RunCreate
from syncline_testing.control import Clock

pytestmark = pytest.mark.anyio

REPLICAS = 40


@pytest.fixture
async def pulse(state: State) -> Pulse:
    """Of a control plane with two runs and some replicas in each."""
    for run in ("r", "s"):
        await state.do(runs.create, RunCreate(name=run))
        for number in range(REPLICAS):
            await state.do(replicas.register, run, ReplicaRegister(replica=f"a{number}"))
    return Pulse(state)


@contextmanager
def commits() -> Iterator[list[object]]:
    """Every commit of any database of this process, as it happens."""
    seen: list[object] = []
    note = seen.append  # whoever takes it away must have the very same
    event.listen(Engine, "commit", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "commit", note)


async def together(pulse: Pulse, *beats: tuple[str, str, Heartbeat]) -> list[Any]:
    return await asyncio.gather(*(pulse.beat(*one) for one in beats), return_exceptions=True)


async def test_a_whole_fleet_costs_one_commit(pulse: Pulse, state: State, clock: Clock) -> None:
    clock.now += 5.0
    beats = [
        (run, f"a{i}", Heartbeat(incarnation=1, progress=Progress(inner_step=i, loss=float(i))))
        for run in ("r", "s")
        for i in range(REPLICAS)
    ]
    with commits() as seen:
        answers = await together(pulse, *beats)
    assert len(seen) == 1
    assert [one.replicas_alive for one in answers] == [REPLICAS] * len(beats)
    for run in ("r", "s"):
        views = await state.do(replicas.listed, run)
        assert [view.progress.inner_step for view in views] == list(range(REPLICAS))
        assert {view.lease_left_s for view in views} == {10.0}


async def test_who_is_refused_is_refused_alone(pulse: Pulse, state: State, clock: Clock) -> None:
    await state.do(replicas.drain, "r", "a1")
    await state.do(replicas.kick, "r", "a2")
    clock.now += 5.0
    beat = Heartbeat(incarnation=1, points=[LossPoint(tokens=1, loss=2.0)])
    later = beat.model_copy(update={"incarnation": 2})
    asked = [("r", "a0", beat), ("r", "a1", beat), ("r", "a2", beat), ("r", "a3", later)]
    asked += [("r", "b", beat), ("t", "a0", beat), ("r", "a4", beat), ("r", "a4", beat)]
    answers = await together(pulse, *asked)
    kinds = [type(one) for one in answers[2:6]]
    assert kinds == [LeaseLost, LeaseLost, ReplicaUnknown, RunUnknown]
    taken = [answers[i] for i in (0, 1, 6, 7)]
    assert [one.drain for one in taken] == [False, True, False, False]
    left = {view.replica: view.lease_left_s for view in await state.do(replicas.listed, "r")}
    assert [left[name] for name in ("a0", "a1", "a2", "a3", "a4")] == [10.0, 10.0, 0.0, 5.0, 10.0]
    curves = await state.do(points.series, "r", 100)
    assert {curve.replica: len(curve.loss) for curve in curves} == {"a0": 1, "a1": 1, "a4": 2}


async def test_who_asked_and_hung_up_takes_nobody_along(pulse: Pulse) -> None:
    beat = Heartbeat(incarnation=1)
    first = asyncio.create_task(pulse.beat("r", "a0", beat))
    second = asyncio.create_task(pulse.beat("r", "a1", beat))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).replicas_alive == REPLICAS


async def test_one_after_the_other_is_taken_too(pulse: Pulse) -> None:
    for _ in range(3):
        assert (await pulse.beat("r", "a0", Heartbeat(incarnation=1))).lease_s == 10.0


@pytest.mark.long
async def test_a_curve_of_many_small_beats_stays_bounded(
    pulse: Pulse, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "POINTS_MAX", 40)
    monkeypatch.setattr(points, "POINTS_UNSEEN_MAX", 20)
    for number in range(30):
        told = [LossPoint(tokens=10 * number + i, loss=1.0) for i in range(5)]
        beats = [("r", name, Heartbeat(incarnation=1, points=told)) for name in ("a0", "a1")]
        await together(pulse, *beats)
        for curve in await state.do(points.series, "r", 1000):
            assert len(curve.loss) < 40 + 20
            assert curve.tokens[0] == 0 and curve.tokens[-1] == told[-1].tokens
