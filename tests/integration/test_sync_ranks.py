"""Replicas of any number of ranks in one round, and pushes that must share too little room."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import runner
from syncline_sync.receiving import TOGETHER
from syncline_sync.staging import Staging
from syncline_testing.service import Service, code_of, flat_layout, iter_push, rank_header, service

SIZE = 5000
AVERAGE = RunSettings.model_validate(
    {"strategy": "local-sgd", "min_replicas": 2, "codec": {"up": "fp32", "down": "fp32"}}
)


def vector(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


async def started(s: Service, *replicas: str, fragments: int = 1) -> None:
    await s.members(dict.fromkeys(replicas, 1))
    for replica in replicas:
        await s.open(flat_layout(SIZE, fragments), replica)
    for fragment in range(fragments):
        await s.offer(vector(0), replicas[0], fragment=fragment)


def test_replicas_of_one_two_and_four_ranks_agree(tmp_path: Path) -> None:
    """One of the four ranks holds nothing, and takes part all the same."""

    async def scenario() -> None:
        async with service(tmp_path, AVERAGE.model_copy(update={"min_replicas": 3})) as s:
            await started(s, "one", "two", "four")
            answers = await asyncio.gather(
                s.push_ranks(vector(1), "one", (), base_revision=0, tokens=10),
                s.push_ranks(vector(2), "two", (1234,), base_revision=0, tokens=20),
                s.push_ranks(vector(3), "four", (1000, 1000, 4999), base_revision=0, tokens=30),
            )
            assert [len(a) for a in answers] == [1, 2, 4]
            for answer in (a for of_replica in answers for a in of_replica):
                assert (answer.verdict, answer.result_revision) == (pb.VERDICT_ACCEPTED, 1)
            header, values = await s.pull(revision=1)
            by_replica = {c.replica: c for c in header.contributions}
            for replica, seed in (("one", 1), ("two", 2), ("four", 3)):
                assert by_replica[replica].norm == pytest.approx(np.linalg.norm(vector(seed)))
            assert header.committed_tokens == 60
            mean = (vector(1) + vector(2) + vector(3)) / np.float32(3)
            np.testing.assert_allclose(values, vector(0) - mean, rtol=0, atol=1e-6)

    asyncio.run(scenario())


def test_a_rank_that_missed_the_answer_gets_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call ends while another rank is waited for; what it has sent stays in."""
    seen = Counter[str]()

    def noted(name: str) -> None:
        real = getattr(Staging, name)

        def note(staging: Staging, *given: Any) -> Any:
            seen[name] += 1
            return real(staging, *given)

        monkeypatch.setattr(Staging, name, note)

    async def until(name: str, count: int) -> None:
        async with asyncio.timeout(20):
            while seen[name] < count:
                await asyncio.sleep(0.005)

    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            await started(s, "a", "b")
            whole = s.header(vector(1), "a", base_revision=0)
            first = rank_header(whole, 0, 2, 0, 100)
            for name in ("join", "leave"):
                noted(name)
            missed = asyncio.ensure_future(s.send(*iter_push(first, vector(1)[:100])))
            await _in(s, 0)
            missed.cancel()
            await until("leave", 1)
            assert s.shared.budget.used == 4 * SIZE, "rank 0 is in and stays in"
            again = asyncio.ensure_future(s.send(*iter_push(first, vector(1)[:100])))
            await until("join", 2)
            second = rank_header(whole, 1, 2, 100, SIZE)
            answers = [await s.send(*iter_push(second, vector(1)[100:])), await again]
            assert {a.verdict for a in answers} == {pb.VERDICT_ACCEPTED}
            once_more = await s.send(*iter_push(first, vector(1)[:100]))
            assert once_more.verdict == pb.VERDICT_DUPLICATE
            assert once_more.judged == pb.VERDICT_ACCEPTED
            assert s.shared.budget.used == 4 * SIZE, "it waits for the other replica's"
            await s.push(vector(1), "b", base_revision=0)
            await s.pull(revision=1)
            assert s.shared.budget.used == 0

    asyncio.run(scenario())


def test_a_rank_that_sends_again_while_its_older_calls_hang_is_taken(tmp_path: Path) -> None:
    """And the older are refused at once: they would hold what has come beside what comes now."""

    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            await started(s, "a", "b")
            header = s.header(vector(1), "a", base_revision=0)
            _, part = iter_push(header, vector(1)[:1024])
            hanging: list[Any] = []
            for _ in range(3):
                hanging.append(s.stub.Push(timeout=20))
                await hanging[-1].write(pb.PushRequest(header=header))
                await hanging[-1].initial_metadata()
                for _ in range(TOGETHER):
                    await hanging[-1].write(part)
                await _digested(s, TOGETHER * 1024)
                for older in hanging[:-1]:
                    await _refused(older)
            answer = await s.send(*iter_push(header, vector(1)))
            assert answer.verdict == pb.VERDICT_ACCEPTED
            await _refused(hanging[-1])
            assert not s.faults

    asyncio.run(scenario())


def test_an_older_call_that_ends_while_its_rank_sends_again_is_refused(tmp_path: Path) -> None:
    """All its chunks are in, but for the end of its stream, when another takes its place."""

    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            await started(s, "a", "b")
            delta = vector(1)
            parts = list(iter_push(s.header(delta, "a", base_revision=0), delta))
            older, newer = s.stub.Push(timeout=20), s.stub.Push(timeout=20)
            await older.write(parts[0])
            await older.initial_metadata()
            for part in parts[1:]:
                await older.write(part)
            await _digested(s, SIZE)
            await newer.write(parts[0])
            await newer.initial_metadata()
            await older.done_writing()
            await _refused(older)
            assert not s.faults
            for part in parts[1:]:
                await newer.write(part)
            await newer.done_writing()
            assert (await newer).verdict == pb.VERDICT_ACCEPTED

    asyncio.run(scenario())


async def _digested(s: Service, elements: int) -> None:
    """Wait until so many elements of a shard are in, and the end of its stream is not."""
    staging = (await s.residence.run(s.run)).staging
    assert staging is not None
    async with asyncio.timeout(20):
        while [x.received for one in staging._staged.values() for x in one.coming.values()] != [
            elements
        ]:
            await asyncio.sleep(0.01)


async def _in(s: Service, rank: int) -> None:
    """Wait until all of this rank's shard of the one push is in."""
    staging = (await s.residence.run(s.run)).staging
    assert staging is not None
    async with asyncio.timeout(20):
        while [[*one.shards] for one in staging._staged.values()] != [[rank]]:
            await asyncio.sleep(0.005)


async def _refused(older: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="begun to send the same push") as told:
        await older
    assert code_of(told.value) == "INVALID_REQUEST"


@pytest.mark.parametrize("pushes_that_fit", [0, 1, 2])
def test_too_little_room_makes_pushes_wait_and_never_stops_them(
    tmp_path: Path, pushes_that_fit: int
) -> None:
    """Four replicas of three ranks, four fragments each, all at once."""
    replicas, fragments, rounds = ("a", "b", "c", "d"), 4, 3
    settings = AVERAGE.model_copy(update={"min_replicas": len(replicas)})

    async def scenario() -> None:
        limit = max(4 * SIZE * pushes_that_fit, 1)
        async with service(tmp_path, settings, staging_bytes=limit) as s:
            await started(s, *replicas, fragments=fragments)
            peak = 0

            async def watch() -> None:
                nonlocal peak
                while True:
                    peak = max(peak, s.shared.budget.used)
                    await asyncio.sleep(0)

            watching = asyncio.ensure_future(watch())
            for revision in range(rounds):
                await asyncio.gather(
                    *(
                        s.push_ranks(vector(i), r, (1500, 3000), fragment=f, base_revision=revision)
                        for f in range(fragments)
                        for i, r in enumerate(replicas)
                    )
                )
            watching.cancel()
            for fragment in range(fragments):
                header, _ = await s.pull(fragment=fragment, revision=rounds)
                assert len(header.contributions) == len(replicas)
            assert 0 < peak <= max(limit, 4 * SIZE)
            assert s.shared.budget.used == 0
            assert not s.faults

    asyncio.run(scenario())


def test_chunks_that_come_before_there_is_room_are_refused(tmp_path: Path) -> None:
    """Or gRPC would keep them, however little room there is. Who waits for room gets it."""

    async def scenario() -> None:
        async with service(tmp_path, AVERAGE, staging_bytes=1) as s:
            await started(s, "a", "b")
            header = s.header(vector(1), "a", base_revision=0)
            first, second = (rank_header(header, i, 2, 2500 * i, 2500 * (i + 1)) for i in (0, 1))
            lone = s.stub.Push()
            await lone.write(pb.PushRequest(header=first))
            await lone.initial_metadata()
            hasty = list(iter_push(s.header(vector(2), "b", base_revision=0), vector(2)))
            with pytest.raises(grpc.aio.AioRpcError, match="no room yet") as refused:
                await s.stub.Push(iter(hasty), timeout=20)
            assert code_of(refused.value) == "OVERLOADED"
            waiting = asyncio.ensure_future(s.send(*hasty))
            for part in list(iter_push(first, vector(1)[:2500]))[1:]:
                await lone.write(part)
            await lone.done_writing()
            assert (
                await s.send(*iter_push(second, vector(1)[2500:]))
            ).verdict == pb.VERDICT_ACCEPTED
            assert (await lone).verdict == (await waiting).verdict == pb.VERDICT_ACCEPTED

    asyncio.run(scenario())


@pytest.mark.parametrize("is_heavy", [False, True], ids=["at once", "in the pool"])
def test_ranks_that_overlap_are_all_told_and_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_heavy: bool
) -> None:
    """However many spans are to be compared."""
    if is_heavy:
        monkeypatch.setattr(runner, "FEW_SPANS", 0)

    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            await started(s, "a", "b")
            whole = s.header(vector(1), "a", base_revision=0)
            first = rank_header(whole, 0, 2, 0, 3000)
            second = rank_header(whole, 1, 2, 2500, 4500)
            answers = await asyncio.gather(
                s.send(*iter_push(first, vector(1)[:3000])),
                s.send(*iter_push(second, vector(1)[2500:4500])),
                return_exceptions=True,
            )
            for answer in answers:
                assert isinstance(answer, grpc.aio.AioRpcError)
                assert code_of(answer) == "INVALID_REQUEST"
                assert "element 2500 of 5000 is covered twice" in (answer.details() or "")
            assert list((await s.status()).fragments[0].arrived) == []
            assert s.shared.budget.used == 0

    asyncio.run(scenario())
