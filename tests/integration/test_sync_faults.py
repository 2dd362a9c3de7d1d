"""What goes wrong in a round: clients that die, leases that end, poison, full disks, restarts."""

from __future__ import annotations

import asyncio
import math
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

import grpc
import numpy as np
import pytest

from syncline_proto.errors import LayoutMismatch, StoreError
from syncline_proto.reports import EventIn, RoundReport
from syncline_proto.rest import (
    Membership,
)
from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import servicer
from syncline_sync.store import RunStore
from syncline_testing.service import (
    RUN,
    Service,
    code_of,
    flat_layout,
    iter_push,
    rank_header,
    service,
)

SIZE = 600_000  # several chunks
LAYOUT = flat_layout(SIZE)
AVERAGE = RunSettings.model_validate(
    {"strategy": "local-sgd", "min_replicas": 2, "codec": {"up": "fp32", "down": "fp32"}}
)
ALONE = AVERAGE.model_copy(update={"min_replicas": 1})


def vector(value: float) -> np.ndarray:
    return np.full(SIZE, value, np.float32)


async def started(s: Service, *replicas: str) -> None:
    await s.members(dict.fromkeys(replicas, 1))
    for replica in replicas:
        await s.open(LAYOUT, replica)
    await s.offer(vector(1.0), replicas[0])


async def until_free(s: Service) -> None:
    """Until nothing is held for pushes any more."""
    for _ in range(2000):
        if s.shared.budget.used == 0:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("room is still held")


DYING_CLIENT = """
import sys, time, grpc
from syncline_proto.v1 import sync_pb2 as pb, sync_pb2_grpc
header = pb.PushHeader.FromString(bytes.fromhex(sys.argv[2]))
def parts():
    yield pb.PushRequest(header=header)
    yield pb.PushRequest(chunk=pb.Chunk.FromString(sys.stdin.buffer.read()))
    print("sent", flush=True)
    time.sleep(60)
sync_pb2_grpc.SyncServiceStub(grpc.insecure_channel(sys.argv[1])).Push(parts())
"""


def test_a_client_killed_in_mid_push_comes_back_and_pushes_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await started(s, "a")
            header = s.header(vector(0.5), "a", base_revision=0)
            first = list(iter_push(header, vector(0.5)))[1].chunk
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", DYING_CLIENT, s.address, header.SerializeToString().hex()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            try:
                assert client.stdin is not None and client.stdout is not None
                client.stdin.write(first.SerializeToString())
                client.stdin.close()
                assert await client.stdout.readline() == b"sent\n"
                while s.shared.budget.used == 0:
                    await asyncio.sleep(0.01)
            finally:
                client.send_signal(signal.SIGKILL)
                await client.wait()
            await until_free(s)
            answer = await s.send(*iter_push(header, vector(0.5)))
            assert answer.verdict == pb.VERDICT_ACCEPTED
            _, values = await s.pull(revision=1)
            assert np.array_equal(values, vector(0.5))
            assert not s.faults

    asyncio.run(scenario())


def test_calls_that_are_cut_anywhere_leave_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            await started(s, "a", "b")
            header = s.header(vector(0.5), "a", base_revision=0)
            parts = list(iter_push(header, vector(0.5)))
            for sent in range(len(parts)):
                for pause_s in (0.0, 0.01):
                    call = s.stub.Push()
                    for part in parts[:sent]:
                        await call.write(part)
                    await asyncio.sleep(pause_s)
                    call.cancel()
                    pull = s.stub.Pull(pb.PullRequest(run="run", newest=True))
                    await pull.read()
                    pull.cancel()
            await until_free(s)
            assert list((await s.status()).fragments[0].arrived) == []
            assert not s.faults

    asyncio.run(scenario())


@pytest.mark.parametrize("profile", ["lan", "wan"])
def test_a_push_may_stand_still_for_as_long_as_its_run_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: Literal["lan", "wan"]
) -> None:
    """And it is the run's own profile that says how long."""
    assert TimeoutSettings(profile=profile).call_s <= servicer.HEADER_WAIT_S
    short = property(lambda rules: 0.2 if rules.profile == profile else 60.0)
    monkeypatch.setattr(TimeoutSettings, "call_s", short)
    rules = ALONE.model_copy(update={"timeouts": TimeoutSettings(profile=profile)})

    async def scenario() -> None:
        async with service(tmp_path, rules) as s:
            await started(s, "a")
            standing = s.stub.Push(timeout=20)
            header = s.header(vector(1.0), "a", base_revision=0)
            await standing.write(pb.PushRequest(header=header))
            with pytest.raises(grpc.aio.AioRpcError, match=r"(within|for) 0\.2 s;") as cut:
                await standing
            assert code_of(cut.value) == "UNREACHABLE"
            await until_free(s)

    asyncio.run(scenario())


def test_a_push_that_does_not_say_whose_it_is_breaks_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "HEADER_WAIT_S", 0.05)

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            with pytest.raises(grpc.aio.AioRpcError, match=r"no header came within 0\.05 s") as cut:
                await s.stub.Push(timeout=20)
            assert code_of(cut.value) == "INVALID_REQUEST"
            assert not s.faults

    asyncio.run(scenario())


def test_who_loses_its_lease_is_told_wherever_its_call_waits(tmp_path: Path) -> None:
    """For other ranks, for chunks, for room: without any deadline of its own."""

    async def scenario() -> None:
        async with service(tmp_path, ALONE, staging_bytes=1) as s:
            await started(s, "a", "b", "c")
            sending = s.stub.Push()
            a = s.header(vector(1.0), "a", base_revision=0)
            await sending.write(pb.PushRequest(header=rank_header(a, 0, 2, 0, 10)))
            second = rank_header(a, 1, 2, 10, SIZE)
            in_already = asyncio.ensure_future(
                s.send(*iter_push(second, vector(1.0)[10:]), timeout=None)
            )
            while s.shared.budget.used == 0:
                await asyncio.sleep(0.01)
            for_room = asyncio.ensure_future(
                s.send(
                    *iter_push(s.header(vector(1.0), "b", base_revision=0), vector(1.0)),
                    timeout=None,
                )
            )
            await asyncio.sleep(0.2)
            assert not (in_already.done() or for_room.done())
            await s.members({"c": 1})
            for call in (sending, in_already, for_room):
                assert (await call).verdict == pb.VERDICT_FENCED
            await until_free(s)
            assert (await s.push(vector(1.0), "c", base_revision=0)).verdict == pb.VERDICT_ACCEPTED

    asyncio.run(scenario())


def test_a_run_that_ends_answers_all_its_pushes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            await started(s, "a", "b")
            header = rank_header(s.header(vector(1.0), "a", base_revision=0), 0, 2, 0, 10)
            waiting = asyncio.ensure_future(s.send(*iter_push(header, vector(1.0)[:10])))
            await asyncio.sleep(0.1)
            await s.follow(Membership(version=99, runs=[]))
            assert (await waiting).verdict == pb.VERDICT_FENCED
            _, values = await s.pull(newest=True)  # its last value is still to be had
            assert np.array_equal(values, vector(1.0))

    asyncio.run(scenario())


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_poison_counts_for_nothing_and_is_told(tmp_path: Path, poison: float) -> None:
    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            await started(s, "a", "b")
            values = vector(0.5)
            values[SIZE // 2] = poison
            bad = await s.push(values, "a", base_revision=0)
            assert (bad.verdict, bad.non_finite) == (pb.VERDICT_ANOMALOUS, True)
            assert bad.residual == pb.RESIDUAL_ACTION_CLEAR
            await s.push(vector(0.25), "b", base_revision=0)
            header, merged = await s.pull(revision=1)
            assert np.array_equal(merged, vector(0.75))
            assert [c.weight for c in header.contributions] == [0.0, 1.0]
            report = [r for r in s.reports if isinstance(r, RoundReport)][-1]
            assert report.contributions[0].norm is None
            assert report.contributions[0].verdict == "anomalous"
            events = [e for e in s.reports if isinstance(e, EventIn)]
            assert [(e.kind, e.replica) for e in events] == [("push.excluded", "a")]
            again = await s.push(values, "a", base_revision=0, seq=s.seqs["a", 1, 0])
            assert (again.verdict, again.non_finite) == (pb.VERDICT_DUPLICATE, True)
            told = {"run": RUN, "verdict": "duplicate"}
            registry = s.shared.metrics.registry
            assert registry.get_sample_value("syncline_pushes_total", told) == 1.0

    asyncio.run(scenario())


def test_a_full_disk_stops_the_service_with_nothing_published(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await started(s, "a")
            await s.pull(revision=0)
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, hard))
            try:
                accepted = await s.push(vector(0.5), "a", base_revision=0)
                assert accepted.verdict == pb.VERDICT_ACCEPTED
                while not s.faults:
                    await asyncio.sleep(0.01)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert isinstance(s.faults[0], StoreError)
            assert "r00000001" in s.faults[0].message
            assert (await s.status()).fragments[0].revision == 0
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1})
            again = await s.push(vector(0.5), "a", base_revision=0, seq=2)
            assert again.verdict == pb.VERDICT_ACCEPTED, "it was never committed"
            _, values = await s.pull(revision=1)
            assert np.array_equal(values, vector(0.5))

    asyncio.run(scenario())


def test_a_disk_that_refuses_an_opening_stops_the_service(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1})
            (tmp_path / "runs" / "run" / "layout.json.new").mkdir()
            with pytest.raises(grpc.aio.AioRpcError):
                await s.open(LAYOUT, "a")
            assert isinstance(s.faults[0], StoreError)

    asyncio.run(scenario())


def test_the_loop_never_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[threading.Thread] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        waited.append(threading.current_thread())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await started(s, "a")
            await s.pull(revision=0)
            s.settings = AVERAGE
            await s.members({"a": 1})
        store = RunStore(tmp_path, RUN)
        assert (store.load_settings(), store.load_layout()) == (AVERAGE, LAYOUT)

    asyncio.run(scenario())
    assert waited and threading.main_thread() not in waited


def test_the_first_layout_is_the_runs_even_if_its_caller_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1, "b": 1})
            run = await s.host.member(RUN, "a", 1)
            first = asyncio.create_task(run.open(LAYOUT, "a"))
            second = asyncio.create_task(run.open(flat_layout(SIZE - 1), "b"))
            await asyncio.sleep(0)  # both are waiting now
            first.cancel()
            with pytest.raises(LayoutMismatch):
                await second
            assert (await s.status()).fingerprint == LAYOUT.fingerprint()
        assert RunStore(tmp_path, RUN).load_layout() == LAYOUT

    asyncio.run(scenario())


def test_settings_that_the_disk_refuses_do_not_count(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await started(s, "a")
            (tmp_path / "runs" / RUN / "run.json.new").mkdir()
            s.settings = AVERAGE
            with pytest.raises(StoreError):  # and the line to the control plane ends with it
                await s.members({"a": 1})
            run = await s.residence.run(RUN)
            assert run.settings == ALONE

    asyncio.run(scenario())


def test_a_restart_in_mid_round_waits_for_those_who_took_part(tmp_path: Path) -> None:
    """And takes again what it had folded and not committed."""

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await started(s, "a", "b")
            await s.push(vector(0.5), "a", base_revision=0)
            await s.pull(revision=1)
            await s.push(vector(0.5), "b", base_revision=1)
            await s.push(vector(0.5), "a", base_revision=1)
            await s.pull(revision=2)
            taken = await s.push(vector(0.5), "a", base_revision=2)
            assert taken.verdict == pb.VERDICT_ACCEPTED
            assert taken.result_revision == 3
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1, "b": 1})
            state = (await s.status()).fragments[0]
            assert (state.revision, list(state.arrived)) == (2, [])
            await s.push(vector(0.25), "b", base_revision=2, seq=2)
            state = (await s.status()).fragments[0]
            assert (state.revision, list(state.expected)) == (2, ["a", "b"])
            again = await s.push(vector(0.5), "a", base_revision=2, seq=4)
            assert again.verdict == pb.VERDICT_ACCEPTED
            header, _ = await s.pull(revision=3)
            assert [c.replica for c in header.contributions] == ["b", "a"]

    asyncio.run(scenario())


def test_a_round_closes_at_its_deadline_without_those_who_stay_away(tmp_path: Path) -> None:
    short = {**ALONE.model_dump(), "timeouts": {"lease": 0.5, "round_deadline": 1.0}}

    async def scenario() -> None:
        async with service(tmp_path, RunSettings.model_validate(short)) as s:
            await started(s, "a", "b")
            await s.push(vector(0.5), "a", base_revision=0)
            await s.pull(revision=1)
            await s.push(vector(0.5), "b", base_revision=1)
            await s.push(vector(0.5), "a", base_revision=1)
            await s.pull(revision=2)
            await s.push(vector(0.5), "a", base_revision=2)
            header, _ = await s.pull(revision=3)  # b holds its lease, and sends nothing
            assert [c.replica for c in header.contributions] == ["a"]
            reports = [r for r in s.reports if isinstance(r, RoundReport)]
            while reports[-1].revision < 3:
                await asyncio.sleep(0.01)
                reports = [r for r in s.reports if isinstance(r, RoundReport)]
            assert reports[-1].closed_by == "deadline"

    asyncio.run(scenario())
