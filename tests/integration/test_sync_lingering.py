"""The first push of a round waits for the second: answered at once, and in nobody's way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import lingering
from syncline_testing.service import Service, flat_layout, service

SIZE = 1000
FRAGMENTS = 3
SETTINGS = RunSettings.model_validate(
    {
        "strategy": "local-sgd",
        "codec": {"up": "fp32", "down": "fp32"},
        "min_replicas": 2,
        "outer": {"clip": None},
    }
)


def vector(value: float) -> np.ndarray:
    return np.full(SIZE, value, np.float32)


async def started(s: Service) -> None:
    await s.members({"a": 1, "b": 1})
    for replica in "ab":
        await s.open(flat_layout(SIZE, FRAGMENTS), replica)
    for fragment in range(FRAGMENTS):
        await s.offer(vector(1.0), "a", fragment=fragment)
        await s.pull(fragment=fragment, revision=0)


async def push(s: Service, replica: str, fragment: int) -> None:
    answer = await s.push(vector(0.5), replica, fragment=fragment, base_revision=0)
    assert answer.verdict == pb.VERDICT_ACCEPTED


@pytest.fixture(autouse=True)
def without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing goes on because time has passed."""
    monkeypatch.setattr(lingering, "LINGER_S", 3600.0)


def test_it_is_folded_with_the_second_and_gives_its_room_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            await started(s)
            await push(s, "a", 0)
            assert s.shared.budget.used == 4 * SIZE, "it has its answer, and waits"
            await push(s, "b", 0)
            assert np.array_equal((await s.pull(revision=1))[1], vector(0.5))
            assert s.shared.budget.used == 0
            assert not s.shared.budget._told, "nobody is to be told for what waits no more"

    asyncio.run(scenario())


def test_the_second_is_folded_with_it_although_a_third_is_to_come(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            await started(s)
            await s.members({"a": 1, "b": 1, "c": 1})
            await s.open(flat_layout(SIZE, FRAGMENTS), "c")
            for replica in "ab":
                await push(s, replica, 0)
            await s.pull(revision=1)
            answer = await s.push(vector(0.0), "c", fragment=0, base_revision=1)
            assert answer.verdict == pb.VERDICT_ACCEPTED
            assert s.shared.budget.used == 4 * SIZE
            answer = await s.push(vector(0.0), "b", fragment=0, base_revision=1)
            assert answer.verdict == pb.VERDICT_ACCEPTED
            async with asyncio.timeout(20):
                while s.shared.budget.used:
                    await asyncio.sleep(0.002)
            assert (await s.status()).fragments[0].revision == 1, "a is waited for"

    asyncio.run(scenario())


def test_it_waits_no_more_once_somebody_else_waits_for_its_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, SETTINGS, staging_bytes=4 * SIZE) as s:
            await started(s)
            for fragment in range(FRAGMENTS):
                await push(s, "a", fragment)
            for fragment in range(FRAGMENTS):
                await push(s, "b", fragment)
                assert np.array_equal((await s.pull(fragment=fragment, revision=1))[1], vector(0.5))

    asyncio.run(scenario())


def test_it_waits_no_longer_than_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "LINGER_S", 0.0)

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            await started(s)
            await push(s, "a", 0)
            while s.shared.budget.used:
                await asyncio.sleep(0.01)
            await push(s, "b", 0)
            assert np.array_equal((await s.pull(revision=1))[1], vector(0.5))

    asyncio.run(scenario())


def test_its_room_comes_back_when_its_run_is_put_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            await started(s)
            await push(s, "a", 0)
            await (await s.residence.run(s.run)).stop()
            assert s.shared.budget.used == 0

    asyncio.run(scenario())


def test_its_room_comes_back_when_its_round_is_given_up(tmp_path: Path) -> None:
    """The steps of a synchronous phase go with the lives that have taken them."""
    warm = SETTINGS.model_copy(update={"warmup_steps": 4})

    async def step(s: Service, replica: str, number: int, incarnation: int) -> None:
        given = {"kind": pb.PUSH_KIND_GRADIENT, "gradient_step": number}
        answer = await s.push(vector(0.5), replica, incarnation=incarnation, **given)
        assert answer.verdict == pb.VERDICT_ACCEPTED

    async def scenario() -> None:
        async with service(tmp_path, warm) as s:
            await started(s)
            for replica in "ab":
                await step(s, replica, 1, 1)
            await s.pull(gradient_step=1)
            await step(s, "a", 2, 1)
            assert s.shared.budget.used == 4 * SIZE
            await s.members({"a": 2, "b": 2})
            async with asyncio.timeout(20):
                while s.shared.budget.used:
                    await asyncio.sleep(0.002)
            for replica in "ab":
                await step(s, replica, 1, 2)
            assert np.array_equal((await s.pull(gradient_step=1))[1], vector(0.5))

    asyncio.run(scenario())
