"""Runs that come and go in one process: put away, damaged, hung up at the disk, asked for again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.errors import StoreDamaged, Unreachable
from syncline_proto.reports import EventIn
from syncline_proto.rest import (
    Member,
    Membership,
    RunMembership,
    RunState,
)
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import checkpoints_pb2
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import residence
from syncline_sync.disk import DiskHangs
from syncline_sync.places import Places
from syncline_sync.shard import shard_of
from syncline_testing.service import (
    RUN,
    Service,
    code_of,
    flat_layout,
    iter_push,
    pushed,
    rank_header,
    service,
)
from syncline_testing.slow_disk import SlowDisk

SIZE = 10
LAYOUT = flat_layout(SIZE)
ALONE = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)


def vector(value: float) -> np.ndarray:
    return np.full(SIZE, value, np.float32)


def word(*names: str) -> Membership:
    """The control plane's word of these runs, with one member each."""
    return Membership(
        version=1,
        runs=[
            RunMembership(
                run=name,
                state=RunState.RUNNING,
                settings=ALONE,
                settings_version=1,
                members=[Member(replica="a", incarnation=1)],
            )
            for name in names
        ],
    )


async def started(s: Service) -> None:
    await s.members({"a": 1})
    await s.open(LAYOUT, "a")
    await s.offer(vector(1.0), "a")
    await s.pull(revision=0)


async def left_behind(folder: Path) -> None:
    """The files of a run that is served no more."""
    async with service(folder, ALONE) as s:
        await started(s)


async def refused_for(file: str, call: Awaitable[object]) -> str | None:
    """What is said to who asks for a run with this damaged file."""
    with pytest.raises(grpc.aio.AioRpcError, match=re.escape(file)) as refused:
        await call
    assert code_of(refused.value) == "STORE_DAMAGED"
    return refused.value.details()


async def until(holds: threading.Event) -> None:
    assert await asyncio.to_thread(holds.wait, 60)


def test_a_run_that_is_put_away_in_mid_commit_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for it meanwhile reads it from the store only when its last commit is there."""
    sync, writing, may_go_on = os.fsync, threading.Event(), threading.Event()

    def slow(handle: int) -> None:
        sync(handle)
        if "r00000001" in os.readlink(f"/proc/self/fd/{handle}"):
            writing.set()
            may_go_on.wait(60)

    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(residence, "ENDED_MAX", 0)
    monkeypatch.setattr(residence, "SWEEP_S", 0.001)

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await started(s)
            await s.push(vector(0.5), "a", base_revision=0)
            await until(writing)
            await s.follow(Membership(version=99, runs=[]))
            sweeping = asyncio.create_task(s.residence.sweep())
            while s.shared.metrics.registry.get_sample_value("syncline_sync_runs"):
                await asyncio.sleep(0.001)
            monkeypatch.setattr(residence, "SWEEP_S", 60.0)
            monkeypatch.setattr(residence, "ENDED_MAX", 16)
            asked = asyncio.create_task(s.pull(newest=True))
            await asyncio.sleep(0.1)
            assert not asked.done()
            may_go_on.set()
            header, values = await asked
            assert header.revision == 1
            assert np.array_equal(values, vector(0.5))
            sweeping.cancel()
            assert not s.faults
        async with service(tmp_path, ALONE) as s:
            assert np.array_equal((await s.pull(newest=True))[1], vector(0.5))

    try:
        asyncio.run(scenario())
    finally:
        may_go_on.set()


def test_a_run_that_does_not_come_to_rest_ends_the_service_and_is_not_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may still be written to."""
    fault = RuntimeError("a bug")

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await started(s)
            run = await s.residence.run(RUN)
            with monkeypatch.context() as broken:
                broken.setattr(run, "stop", raised_later)
                broken.setattr(residence, "ENDED_MAX", 0)
                await s.follow(Membership(version=99, runs=[]))
                await s.residence.put_away()
            assert s.faults == [fault]
            with pytest.raises(RuntimeError):
                await s.residence.run(RUN)
            s.residence._stops.clear()
            await run.stop()

    async def raised_later() -> None:
        raise fault

    asyncio.run(scenario())


def test_a_push_that_waits_for_its_turn_when_the_run_is_put_away_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Be it the next one: its replica is told to send it again, and its room is free."""

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await started(s)
            await s.members({"a": 1, "b": 1})
            run = await s.residence.run(RUN)
            with SlowDisk(monkeypatch, "r00000001") as disk:
                await s.push(vector(0.5), "a", base_revision=0)
                await disk.until(lambda disk: bool(disk.at_once))
                push = asyncio.create_task(s.push(vector(0.5), "b", base_revision=1))
                await disk.until(lambda _: run.runners[0]._inbox.qsize() == 1)
                stopping = asyncio.create_task(run.stop())
                await asyncio.sleep(0)
                assert not stopping.done()
                disk.open()
                await stopping
            with pytest.raises(grpc.aio.AioRpcError, match="send it again") as told:
                await asyncio.wait_for(push, 20)
            assert code_of(told.value) == "UNREACHABLE"
            assert s.shared.budget.used == 0
            assert not s.faults

    asyncio.run(scenario())


def test_while_a_fragment_waits_for_its_disk_only_the_newest_membership_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await started(s)
            run = await s.residence.run(RUN)
            with SlowDisk(monkeypatch, "r00000001") as disk:
                await s.push(vector(0.5), "a", base_revision=0)
                await disk.until(lambda disk: bool(disk.at_once))
                for incarnation in range(1, 50):
                    await s.members({"a": 1, "b": incarnation})
                assert run.runners[0]._inbox.qsize() == 1
                disk.open()
            await s.push(vector(0.5), "b", base_revision=1, incarnation=49)
            assert run.runners[0].core.members == {"a": 1, "b": 49}
            assert not s.faults

    asyncio.run(scenario())


def test_a_push_that_lacks_a_rank_when_the_run_is_put_away_is_answered(tmp_path: Path) -> None:
    """Nobody looks any more whether it stands still: it would hold its room for ever."""

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await started(s)
            whole = s.header(vector(0.5), "a", base_revision=0)
            rank = list(iter_push(rank_header(whole, 0, 2, 0, 4), vector(0.5)[:4]))
            waits = asyncio.create_task(pushed(s.stub, rank, timeout=60))
            async with asyncio.timeout(20):
                while not s.shared.budget.used:
                    await asyncio.sleep(0.005)
            run = await s.residence.run(RUN)
            settings = tmp_path / "runs" / RUN / "run.json"
            settings.unlink()
            settings.mkdir()
            s.settings = ALONE.model_copy(update={"sync_every": 7})
            await s.members({"a": 1})
            await refused_for("run.json is a folder", s.status())
            with pytest.raises(grpc.aio.AioRpcError, match="send it again") as told:
                await asyncio.wait_for(waits, 20)
            assert code_of(told.value) == "UNREACHABLE"
            assert s.shared.budget.used == 0
            assert run.staging is not None
            with pytest.raises(Unreachable, match="send it again"):  # who was on the way to it
                run.staging.join(shard_of(Places(LAYOUT), rank[0].header, s.shared.slabs))
            assert not s.faults

    asyncio.run(scenario())


def test_an_opening_that_meets_a_run_that_was_put_away_writes_nothing(tmp_path: Path) -> None:
    """It may be another's by then, who has read the same files."""

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1})
            run = await s.host.member(RUN, "a", 1)
            await run.stop()
            with pytest.raises(Unreachable, match="open it again"):
                await run.open(LAYOUT, "a")
            assert run.layout is None
            assert not list(tmp_path.rglob("layout.json*"))

    asyncio.run(scenario())


@pytest.mark.parametrize("what", ["head.json", "layout.json", "r00000000.safetensors"])
def test_a_damaged_run_is_refused_and_told_of_once_and_others_go_on(
    tmp_path: Path, what: str
) -> None:
    async def scenario() -> None:
        await left_behind(tmp_path)
        (file,) = tmp_path.rglob(what)
        file.write_bytes(file.read_bytes()[:-1])
        async with service(tmp_path, ALONE) as s:
            said: set[str | None] = set()
            for _ in range(2):
                await s.follow(word(RUN, "other"))
                said.add(await refused_for(file.name, s.status()))
            with pytest.raises(StoreDamaged):
                await s.host.member(RUN, "a", 1)
            events = [e for e in s.reports if isinstance(e, EventIn)]
            assert [e.kind for e in events] == ["run.damaged"]
            assert said == {events[0].message}
            told = s.shared.metrics.registry.get_sample_value
            assert told("syncline_run_damaged", {"run": RUN}) == 1.0
            assert told("syncline_run_damaged", {"run": "other"}) is None
            layout = LAYOUT.to_proto()
            other = pb.OpenRunRequest(run="other", replica="a", incarnation=1, layout=layout)
            assert len((await s.stub.OpenRun(other, timeout=20)).fragments) == 1
            assert not s.faults

    asyncio.run(scenario())


def test_a_run_with_a_folder_for_its_settings_is_refused_and_others_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        await left_behind(tmp_path)
        (tmp_path / "runs" / RUN / "run.json").unlink()
        (tmp_path / "runs" / RUN / "run.json").mkdir()
        async with service(tmp_path, ALONE) as s:
            for _ in range(2):
                await s.follow(word(RUN, "other"))
                await refused_for("run.json is a folder", s.status())
            assert len([e for e in s.reports if isinstance(e, EventIn)]) == 1
            assert await s.host.member("other", "a", 1)
            assert not s.faults

    asyncio.run(scenario())


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_an_ended_run_that_is_put_away_as_it_proves_damaged_is_refused_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked_for: bool
) -> None:
    """It is named again, and while its settings are being written it goes, or comes back anew."""

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await started(s)
            lives = [await s.residence.run(RUN)]
            await s.follow(Membership(version=99, runs=[]))

            async def put_away_meanwhile(settings: RunSettings) -> None:
                with monkeypatch.context() as full:
                    full.setattr(residence, "ENDED_MAX", 0)
                    await s.residence.put_away()
                if is_asked_for:
                    lives.append(await s.residence.run(RUN))
                raise StoreDamaged("run.json is a folder.")

            monkeypatch.setattr(lives[0], "keeps", lambda settings: False)
            monkeypatch.setattr(lives[0], "keep", put_away_meanwhile)
            await s.follow(word(RUN, "other"))
            await refused_for("run.json is a folder", s.status())
            await asyncio.gather(*s.residence._stops.values())
            assert all(run._is_ending for run in lives)
            assert await s.host.member("other", "a", 1)
            assert not s.faults

    asyncio.run(scenario())


def test_an_ended_run_with_damaged_settings_is_refused_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        await left_behind(tmp_path)
        (tmp_path / "runs" / RUN / "run.json").write_text("{")
        async with service(tmp_path, ALONE) as s:
            for _ in range(2):
                await refused_for("run.json", s.pull(newest=True))
            assert len(s.reports) == 1

    asyncio.run(scenario())


def test_a_disk_that_never_answers_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1})
            with SlowDisk(monkeypatch, "layout.json") as disk, monkeypatch.context() as soon:
                soon.setattr(residence, "STOP_S", 0.2)
                opening = asyncio.ensure_future(s.open(LAYOUT, "a"))
                await disk.until(lambda disk: bool(disk.at_once))
                with pytest.raises(DiskHangs, match=r"has not answered for 0\.2 s"):
                    await s.residence.stop()
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)

    asyncio.run(scenario())


def test_the_loop_does_not_ask_the_disk_which_runs_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may name a run that is not in memory, and a disk may take long to answer."""
    asked: list[threading.Thread] = []
    stat = os.stat

    def noted(path: Any, *given: Any, **named: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path / "runs")):
            asked.append(threading.current_thread())
        return stat(path, *given, **named)

    async def scenario() -> None:
        await left_behind(tmp_path)
        monkeypatch.setattr(os, "stat", noted)
        async with service(tmp_path, ALONE) as s:
            for run in (RUN, "other"):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await s.stub.GetRunStatus(pb.GetRunStatusRequest(run=run), timeout=20)
            request = checkpoints_pb2.RestoreFragmentsRequest(run=RUN, url=str(tmp_path / "none"))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await s.checkpoints.RestoreFragments(request, timeout=20).read()
            assert code_of(refused.value) == "RUN_CONFLICT"

    asyncio.run(scenario())
    assert asked and threading.main_thread() not in asked
