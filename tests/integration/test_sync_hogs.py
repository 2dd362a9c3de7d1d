"""Who takes room and gives nothing for it: cut after a while, and never in another run's way."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
import pytest

from syncline_proto.layout import Layout
from syncline_proto.rest import Member, Membership, RunMembership, RunState
from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import servicer
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
HOG, HONEST = "hog", "honest"
HOGS = [f"hog-{i}" for i in range(6)]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 0.4))


async def two_runs(s: Service, layout: Layout) -> None:
    """Both opened and offered; the honest one has one replica, the hog many."""
    members = {HOG: HOGS, HONEST: ["a"]}
    runs = [
        RunMembership(
            run=run,
            state=RunState.RUNNING,
            settings=RULES,
            settings_version=1,
            members=[Member(replica=name, incarnation=1) for name in names],
        )
        for run, names in members.items()
    ]
    await s.host.follow(Membership(version=1, runs=runs))
    for run, names in members.items():
        request = pb.OpenRunRequest(
            run=run, replica=names[0], incarnation=1, layout=layout.to_proto()
        )
        await s.stub.OpenRun(request, timeout=20)
        values = np.ones(layout.numel, np.float32)
        await s.offer(values, names[0], run=run)


def test_pushes_that_lack_a_rank_for_ever_do_not_keep_another_run_out(tmp_path: Path) -> None:
    """Even if they come again at once, and fill room and line."""
    layout = flat_layout(1000)
    values = np.full(1000, 0.5, np.float32)
    told: set[str | None] = set()

    async def hog(s: Service, replica: str) -> None:
        whole = s.header(values, replica, run=HOG, seq=9, base_revision=0)
        while True:
            try:
                await s.send(*iter_push(rank_header(whole, 0, 2, 0, 0), values[:0]), timeout=None)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                assert code_of(error) == "UNREACHABLE"
                told.add(error.details())

    async def scenario() -> None:
        async with service(tmp_path, RULES, staging_bytes=2 * values.nbytes) as s:
            await two_runs(s, layout)
            hogs = [asyncio.create_task(hog(s, replica)) for replica in HOGS]
            try:
                while s.shared.budget.used < s.shared.budget.limit:
                    await asyncio.sleep(0.001)
                for base in range(3):
                    answer = await s.push(values, "a", run=HONEST, base_revision=base)
                    assert answer.verdict == pb.VERDICT_ACCEPTED
                assert not any(task.done() for task in hogs)
            finally:
                for task in hogs:
                    task.cancel()
                await asyncio.gather(*hogs, return_exceptions=True)
            assert not s.faults

    asyncio.run(scenario())
    assert told == {"push: rank 1 of 2 did not come for 0.4 s; send it again."}


def test_ranks_of_which_one_moves_slowly_are_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sends a chunk now and then; the other is done with two fragments long before it."""
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 1.0))
    size, grain = 40 * 1024, 1024
    layout = flat_layout(size, fragments=2)
    values = np.full(size, 0.5, np.float32)

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await s.members({"a": 1})
            await s.open(layout, "a")
            for fragment in (0, 1):
                await s.offer(np.ones(size, np.float32), "a", fragment=fragment)
            headers = [s.header(values, "a", base_revision=0, fragment=f) for f in (0, 1)]
            first = [
                asyncio.create_task(
                    s.send(*iter_push(rank_header(h, 0, 2, 0, grain), values[:grain]), timeout=60)
                )
                for h in headers
            ]
            slow = s.stub.Push(timeout=60)
            await slow.write(pb.PushRequest(header=rank_header(headers[0], 1, 2, grain, size)))
            for start in range(grain, size, grain):
                part = rank_header(headers[0], 1, 2, start, start + grain)
                chunk = list(iter_push(part, values[start : start + grain]))[1]
                await slow.write(chunk)
                await asyncio.sleep(0.05)
            await slow.done_writing()
            assert (await slow).verdict == pb.VERDICT_ACCEPTED
            rest = rank_header(headers[1], 1, 2, grain, size)
            last = await s.send(*iter_push(rest, values[grain:]))
            assert last.verdict == pb.VERDICT_ACCEPTED
            assert {(await call).verdict for call in first} == {pb.VERDICT_ACCEPTED}

    asyncio.run(scenario())


def test_a_reader_that_takes_nothing_is_cut_and_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "SENDERS_MAX", 1)
    layout = flat_layout(4 << 20)  # 16 MiB: far more than what gRPC keeps for a reader

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await two_runs(s, layout)
            standing = s.stub.Pull(pb.PullRequest(run=HOG, revision=0))
            assert (await standing.read()).header.elements == layout.numel
            request = pb.PullRequest(run=HONEST, revision=0)
            parts = [part async for part in s.stub.Pull(request, timeout=60)]
            assert sum(len(part.chunk.data) for part in parts) == 4 * layout.numel
            with pytest.raises(grpc.aio.AioRpcError, match="nothing was taken for 0.4 s") as cut:
                while await standing.read() is not grpc.aio.EOF:
                    pass
            assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
            assert code_of(cut.value) == "UNREACHABLE"
            assert not s.faults

    asyncio.run(scenario())


def test_readers_that_go_while_they_wait_for_a_turn_leave_it_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "SENDERS_MAX", 1)
    layout = flat_layout(4 << 20)

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await two_runs(s, layout)
            calls = [s.stub.Pull(pb.PullRequest(run=HOG, revision=0)) for _ in range(5)]
            for call in calls:
                await call.read()
            for call in calls:
                call.cancel()
                with suppress(asyncio.CancelledError):
                    await call.code()
            parts = [
                part async for part in s.stub.Pull(pb.PullRequest(run=HOG, revision=0), timeout=60)
            ]
            assert sum(len(part.chunk.data) for part in parts) == 4 * layout.numel
            assert not s.faults

    asyncio.run(scenario())
