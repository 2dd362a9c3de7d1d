"""Who takes room and gives nothing for it: cut after a while, and never in another run's way."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.layout import Layout
from syncline_proto.rest import Member, Membership, RunMembership, RunState
from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_sync import servicer
from syncline_sync.reading import THING_BYTES
from syncline_testing.service import (
    Service,
    code_of,
    flat_layout,
    iter_push,
    rank_header,
    service,
)

PATIENCE_S = 60.0
RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)
HOG, HONEST = "hog", "honest"
HOGS = [f"hog-{i}" for i in range(6)]
LARGE = flat_layout(2 << 20)
"""8 MiB: sixteen chunks, of which a ``narrow`` reader's side keeps less than one."""

NARROW = (("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0))
"""A reader's side that keeps no more. Left to itself gRPC begins with 4 MiB, and grows as it
measures the line: on a busy machine to more than a whole pull, and then nobody is cut.
"""


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 0.4))


@asynccontextmanager
async def two_runs(folder: Path, layout: Layout, **how: Any) -> AsyncIterator[Service]:
    """A service with both opened and offered; the honest one has one replica, the hog many."""
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
    async with service(folder, RULES, **how) as s:
        await s.follow(Membership(version=1, runs=runs))
        for run, names in members.items():
            request = pb.OpenRunRequest(
                run=run, replica=names[0], incarnation=1, layout=layout.to_proto()
            )
            await s.stub.OpenRun(request, timeout=20)
            values = np.ones(layout.numel, np.float32)
            offer = s.header(values, names[0], run=run, kind=pb.PUSH_KIND_PARAMETERS)
            await insisted(s.send, *iter_push(offer, values))
        yield s


async def insisted(call: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    """Call again after a cut, as a client should: a busy machine keeps honest ones waiting, too."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call(*args, **kwargs)
            except grpc.aio.AioRpcError as error:
                if code_of(error) != "UNREACHABLE":
                    raise


@asynccontextmanager
async def standing(s: Service, count: int, run: str = HOG) -> AsyncIterator[list[Any]]:
    """Pulls of a run's ``LARGE`` revision 0 that have begun, and of which nothing more is taken."""
    async with grpc.aio.insecure_channel(s.address, options=NARROW) as channel:
        narrow: Any = sync_pb2_grpc.SyncServiceStub(channel)
        calls = [narrow.Pull(pb.PullRequest(run=run, revision=0)) for _ in range(count)]
        async with asyncio.timeout(PATIENCE_S):
            for call in calls:
                header = (await call.read()).header
                assert (header.revision, header.elements) == (0, LARGE.numel)
        yield calls


async def to_the_end(call: Any) -> None:
    """Take all that still comes of a pull."""
    async with asyncio.timeout(PATIENCE_S):
        while await call.read() is not grpc.aio.EOF:
            pass


async def pulled(s: Service, run: str) -> int:
    """Pull a run's revision 0 whole: its elements."""
    _, values = await insisted(s.pull, run=run, revision=0)
    return values.size


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
        async with two_runs(tmp_path, layout, staging_bytes=2 * values.nbytes) as s:
            hogs = [asyncio.create_task(hog(s, replica)) for replica in HOGS]
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while s.shared.budget.used < s.shared.budget.limit:
                        await asyncio.sleep(0.001)
                for base in range(3):
                    header = s.header(values, "a", run=HONEST, base_revision=base)
                    answer = await insisted(s.send, *iter_push(header, values))
                    assert answer.verdict == pb.VERDICT_ACCEPTED
                assert not any(task.done() for task in hogs)
            finally:
                for task in hogs:
                    task.cancel()
                _, late = await asyncio.wait(hogs, timeout=PATIENCE_S)
                assert not late
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

    async def scenario() -> None:
        async with two_runs(tmp_path, LARGE) as s, standing(s, 1) as (call,):
            assert await pulled(s, HONEST) == LARGE.numel
            with pytest.raises(grpc.aio.AioRpcError, match="nothing was taken for 0.4 s") as cut:
                await to_the_end(call)
            assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
            assert code_of(cut.value) == "UNREACHABLE"
            assert not s.faults

    asyncio.run(scenario())


def test_readers_that_take_nothing_do_not_keep_another_run_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run pulls while none of them has been cut, although they ask for all turns."""
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 90.0))
    monkeypatch.setattr(servicer, "SENDERS_MAX", 4)

    async def scenario() -> None:
        async with two_runs(tmp_path, LARGE) as s, standing(s, 12) as calls:
            assert await pulled(s, HONEST) == LARGE.numel
            assert not any(call.done() for call in calls)
            for call in calls:
                call.cancel()

    asyncio.run(scenario())


def test_readers_that_go_while_they_wait_for_a_turn_leave_it_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "SENDERS_MAX", 1)

    async def scenario() -> None:
        async with two_runs(tmp_path, LARGE) as s, standing(s, 5) as calls:
            for call in calls:
                call.cancel()
                with suppress(asyncio.CancelledError):
                    await call.code()
            assert await pulled(s, HOG) == LARGE.numel
            assert not s.faults

    asyncio.run(scenario())


def test_a_run_whose_cut_readers_stay_has_no_more_turns_until_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they hold is bounded by their number, and other runs pull meanwhile."""
    monkeypatch.setattr(servicer, "SENDERS_MAX", 1)
    monkeypatch.setattr(servicer, "ENDING_MAX", 3)

    async def scenario() -> None:
        async with two_runs(tmp_path, LARGE) as s, standing(s, 8) as calls:
            codes = [asyncio.create_task(call.code()) for call in calls]
            for code in itertools.islice(asyncio.as_completed(codes, timeout=PATIENCE_S), 5):
                assert await code is grpc.StatusCode.RESOURCE_EXHAUSTED
            monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 60.0))
            assert await pulled(s, HONEST) == LARGE.numel
            with pytest.raises(grpc.aio.AioRpcError, match="3 pulls that were cut") as refused:
                await pulled(s, HOG)
            assert code_of(refused.value) == "OVERLOADED"
            left = [call for call, code in zip(calls, codes, strict=True) if not code.done()]
            assert len(left) == 3
            left[0].cancel()
            async with asyncio.timeout(PATIENCE_S):
                while True:  # until the service has heard of it
                    with suppress(grpc.aio.AioRpcError):
                        assert await pulled(s, HOG) == LARGE.numel
                        break
            for call in left:
                call.cancel()
            _, late = await asyncio.wait(codes, timeout=PATIENCE_S)
            assert not late and not s.faults

    asyncio.run(scenario())


def test_a_slow_pull_ends_once_its_revision_has_been_dropped_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each slow reader would keep another revision in memory."""
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 60.0))
    monkeypatch.setattr(TimeoutSettings, "give_up_s", property(lambda _: 0.0))
    values = np.full(LARGE.numel, 0.5, np.float32)

    async def scenario() -> None:
        async with two_runs(tmp_path, LARGE) as s, standing(s, 1, HONEST) as (slow,):
            for base in range(2):
                await s.push(values, "a", run=HONEST, base_revision=base)
                await s.stub.Pull(
                    pb.PullRequest(run=HONEST, revision=base + 1, header_only=True), timeout=60
                ).read()
            with pytest.raises(grpc.aio.AioRpcError, match="revision 0 is gone") as gone:
                await to_the_end(slow)
            assert code_of(gone.value) == "REVISION_GONE"
            assert dict(gone.value.trailing_metadata() or ())["syncline-newest-revision"] == "2"

    asyncio.run(scenario())


def test_large_requests_that_wait_are_bounded_and_others_are_not(tmp_path: Path) -> None:
    """Pulls of a revision that nobody makes, each with a heap of boxes."""
    layout = flat_layout(1000)
    boxes = [pb.Box(tensor=0, offsets=[0], sizes=[0])] * 50_000
    fat = pb.PullRequest(run=HOG, fragment=0, revision=9, boxes=boxes)

    async def scenario() -> None:
        async with two_runs(tmp_path, layout, held_max=3 * THING_BYTES * len(boxes)) as s:
            pulls = [asyncio.create_task(_first(s, fat)) for _ in range(8)]
            for pull in itertools.islice(asyncio.as_completed(pulls, timeout=20), 5):
                await pull
            done = [pull for pull in pulls if pull.done()]
            waiting = [pull for pull in pulls if not pull.done()]
            assert len(waiting) == 3 and {task.result() for task in done} == {"OVERLOADED"}
            small = pb.PullRequest(run=HONEST, fragment=0, newest=True)
            assert await _first(s, small) == ""
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting, timeout=PATIENCE_S)
            fat.revision = 0
            until = time.monotonic() + 20
            while (code := await _first(s, fat)) == "OVERLOADED" and time.monotonic() < until:
                await asyncio.sleep(0.05)
            assert code == ""

    asyncio.run(scenario())


@contextmanager
def busy(s: Service) -> Iterator[None]:
    """The service's pool does nothing for anybody, as while it writes to a slow disk."""
    over = threading.Event()
    for _ in range(2):
        s.shared.pool.submit(over.wait)
    try:
        yield
    finally:
        over.set()


def test_large_headers_that_wait_are_bounded_and_others_are_not(tmp_path: Path) -> None:
    layout = flat_layout(1000)
    heap = [pb.Box(tensor=0, offsets=[0], sizes=[0])] * 50_000
    size = THING_BYTES * len(heap)

    async def scenario() -> None:
        async with two_runs(tmp_path, layout, held_max=3 * size + (1 << 12)) as s:
            values = np.ones(1000, np.float32)
            whole = pb.Box(offsets=[0], sizes=[1000])

            async def pushed(run: str, replica: str, boxes: list[pb.Box]) -> str:
                header = s.header(values, replica, run=run, base_revision=0, boxes=boxes)
                try:
                    return str((await s.send(*iter_push(header, values))).verdict)
                except grpc.aio.AioRpcError as error:
                    return code_of(error)

            with busy(s):
                fat = [asyncio.create_task(pushed(HOG, name, heap)) for name in HOGS]
                early = itertools.islice(asyncio.as_completed(fat, timeout=20), len(HOGS) - 3)
                assert {await task for task in early} == {"OVERLOADED"}
                assert sum(not task.done() for task in fat) == 3
                small = asyncio.create_task(pushed(HONEST, "a", [whole]))
            assert {await task for task in fat} == {"OVERLOADED", "INVALID_REQUEST"}
            assert await small == str(pb.VERDICT_ACCEPTED)

    asyncio.run(scenario())


def test_what_a_shard_cannot_hold_does_not_wait_for_a_busy_pool(tmp_path: Path) -> None:
    """Or all that comes meanwhile would be kept, however little room the push has."""
    layout = flat_layout(1000)

    async def scenario() -> None:
        async with two_runs(tmp_path, layout) as s:
            values = np.ones(1000, np.float32)
            header, *chunks = iter_push(s.header(values, "hog-1", run=HOG, base_revision=0), values)
            call = s.stub.Push(timeout=20)
            await call.write(header)
            await call.initial_metadata()
            with busy(s):
                for part in (*chunks, *chunks):
                    await call.write(part)
                with pytest.raises(grpc.aio.AioRpcError, match="only 0 are left") as refused:
                    await call
            assert code_of(refused.value) == "INVALID_REQUEST"

    asyncio.run(scenario())


async def _first(s: Service, request: pb.PullRequest) -> str:
    """Wait for the first answer of a pull: the code of its refusal, or nothing."""
    try:
        await s.stub.Pull(request, timeout=60).read()
    except grpc.aio.AioRpcError as error:
        return code_of(error)
    return ""
