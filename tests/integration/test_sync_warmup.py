"""The synchronous phase from end to end, with a restart of the service in the middle."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.reports import RoundReport
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.shard import Shard
from syncline_sync.staged import Staged
from syncline_sync.staging import Staging
from syncline_testing.service import (
    Service,
    code_of,
    flat_layout,
    iter_push,
    rank_header,
    service,
)
from syncline_testing.slow_disk import SlowDisk

SIZE, CUT = 3000, 1234
STEPS = 4
LAYOUT = flat_layout(SIZE)
RULES = RunSettings.model_validate(
    {
        "min_replicas": 2,
        "warmup_steps": STEPS,
        "strategy": "local-sgd",
        "codec": {"up": "fp32", "down": "fp32"},
    }
)
GRADIENT = pb.PUSH_KIND_GRADIENT


def gradient(replica: str, step: int) -> np.ndarray:
    return np.random.default_rng([ord(replica), step]).standard_normal(SIZE).astype(np.float32)


async def make(s: Service, step: int, *replicas: str) -> np.ndarray:
    """One gradient step; replica a has three times the tokens of b."""
    for replica in replicas:
        tokens = 30 if replica == "a" else 10
        pushed = await s.push(
            gradient(replica, step), replica, kind=GRADIENT, gradient_step=step, tokens=tokens
        )
        assert (pushed.verdict, pushed.result_revision) == (pb.VERDICT_ACCEPTED, step)
    header, mean = await s.pull(gradient_step=step)
    assert (header.revision, header.gradient_step) == (0, step)
    assert header.codec == pb.CODEC_FP32
    return mean


def expected(step: int) -> np.ndarray:
    return (np.float32(30) * gradient("a", step) + np.float32(10) * gradient("b", step)) / 40


async def opened(s: Service, *replicas: str) -> None:
    await s.members(dict.fromkeys(replicas, 1))
    for replica in replicas:
        await s.open(LAYOUT, replica)


def test_the_phase_survives_a_restart_and_ends_in_revision_1(tmp_path: Path) -> None:
    start = np.ones(SIZE, np.float32)

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await opened(s, "a", "b")
            await s.offer(start, "a")
            assert (await s.offer(start * 2, "b")).verdict == pb.VERDICT_STALE
            for step in (1, 2):
                mean = await make(s, step, "a", "b")
                np.testing.assert_allclose(mean, expected(step), rtol=1e-5, atol=1e-6)
            await s.push(gradient("a", 3), "a", kind=GRADIENT, gradient_step=3, tokens=30)
            seqs = dict(s.seqs)
        async with service(tmp_path, RULES) as s:
            await s.members({"a": 1, "b": 1})
            state = (await s.status()).fragments[0]
            assert (state.revision, state.gradient_step, state.committed_tokens) == (0, 2, 80)
            for step in (1, 2):
                _, mean = await s.pull(gradient_step=step)
                np.testing.assert_allclose(mean, expected(step), rtol=1e-5, atol=1e-6)
            done = await s.push(
                gradient("a", 2), "a", kind=GRADIENT, gradient_step=2, tokens=30,
                seq=seqs["a", 1, 0] - 1,
            )  # fmt: skip
            assert (done.verdict, done.result_revision) == (pb.VERDICT_DUPLICATE, 2)
            s.seqs.update({**seqs, ("a", 1, 0): seqs["a", 1, 0] - 1})  # its last push was lost
            for step in (3, 4):
                mean = await make(s, step, "a", "b")
                np.testing.assert_allclose(mean, expected(step), rtol=1e-5, atol=1e-6)
            with pytest.raises(grpc.aio.AioRpcError) as over:
                await s.push(gradient("a", 5), "a", kind=GRADIENT, gradient_step=STEPS + 1)
            assert code_of(over.value) == "INVALID_REQUEST"
            trained = start * 3
            offers = [await s.offer(trained, r, base_revision=0) for r in ("b", "a")]
            assert [o.verdict for o in offers] == [pb.VERDICT_ACCEPTED, pb.VERDICT_STALE]
            header, values = await s.pull(revision=1)
            assert np.array_equal(values, trained)
            assert header.committed_tokens == 40 * STEPS
            for replica in ("a", "b"):
                await s.push(np.full(SIZE, 0.5, np.float32), replica, base_revision=1)
            _, values = await s.pull(revision=2)
            assert np.array_equal(values, trained - np.float32(0.5))
            assert not s.faults

    asyncio.run(scenario())


def test_pulls_of_a_gradient_end_with_the_phase(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await opened(s, "a", "b")
            await s.offer(np.ones(SIZE, np.float32), "a")
            for wrong in (0, STEPS + 1):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await s.pull(gradient_step=wrong)
                assert code_of(refused.value) == "INVALID_REQUEST"
            with pytest.raises(grpc.aio.AioRpcError) as early:
                await s.pull(gradient_step=2)
            assert code_of(early.value) == "REVISION_GONE"
            assert "gradient step 2 is still to come; there is none yet." in str(early.value)
            for step in range(1, STEPS + 1):
                await make(s, step, "a", "b")
            with pytest.raises(grpc.aio.AioRpcError) as gone:
                await s.pull(gradient_step=1)
            assert code_of(gone.value) == "REVISION_GONE"
            await s.offer(np.ones(SIZE, np.float32), "a", base_revision=0)
            await s.pull(revision=1)
            with pytest.raises(grpc.aio.AioRpcError) as over:
                await s.pull(gradient_step=STEPS)
            assert code_of(over.value) == "REVISION_GONE"
            state = (await s.status()).fragments[0]
            assert (state.revision, state.gradient_step) == (1, STEPS)

    asyncio.run(scenario())


def test_the_survivor_of_the_phase_ends_it_and_the_other_joins(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await opened(s, "a", "b")
            await s.offer(np.ones(SIZE, np.float32), "a")
            await make(s, 1, "a", "b")
            await s.push(gradient("a", 2), "a", kind=GRADIENT, gradient_step=2, tokens=30)
            await s.members({"a": 1, "b": 2})  # b was killed and is back: it waits for revision 1
            joining = asyncio.ensure_future(s.pull(revision=1))
            await s.pull(gradient_step=2)
            for step in (3, 4):
                await make(s, step, "a")
            await s.offer(np.full(SIZE, 7, np.float32), "a", base_revision=0)
            _, values = await joining
            assert np.array_equal(values, np.full(SIZE, 7))
            change = np.full(SIZE, 0.5, np.float32)
            await s.push(change, "b", incarnation=2, base_revision=1)
            await s.push(change, "a", base_revision=1)
            assert len((await s.pull(revision=2))[0].contributions) == 2

    asyncio.run(scenario())


def test_the_phase_starts_again_when_everyone_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await opened(s, "a", "b")
            await s.offer(np.ones(SIZE, np.float32), "a")
            await make(s, 1, "a", "b")
            await make(s, 2, "a", "b")
            await s.members({"a": 2, "b": 2})
            s.seqs.clear()
            while (await s.status()).fragments[0].gradient_step:
                await asyncio.sleep(0.01)
            stands = (await s.status()).fragments[0]
            told = [one for one in s.reports if isinstance(one, RoundReport)][-1]
            assert stands.committed_tokens == told.committed_tokens == 0, "they are gone with it"
            for replica in ("a", "b"):
                await s.push(
                    gradient(replica, 1), replica, incarnation=2, kind=GRADIENT, gradient_step=1
                )
            header, _ = await s.pull(gradient_step=1)
            assert [c.incarnation for c in header.contributions] == [2, 2]
            first = header.committed_tokens
        async with service(tmp_path, RULES) as s:
            await s.members({"a": 2, "b": 2})
            header, _ = await s.pull(gradient_step=1)
            assert (header.committed_tokens, len(header.contributions)) == (first, 2)

    asyncio.run(scenario())


def test_who_waits_in_a_phase_that_starts_again_is_told(tmp_path: Path) -> None:
    rules = RULES.model_copy(update={"min_replicas": 1})

    async def gone(pull: asyncio.Task[Any], newest: int) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await pull
        trailer = dict(error.value.trailing_metadata() or ())
        assert code_of(error.value) == "REVISION_GONE"
        assert trailer["syncline-newest-revision"] == str(newest)

    async def scenario() -> None:
        async with service(tmp_path, rules) as s:
            await opened(s, "a", "b")
            await s.offer(np.ones(SIZE, np.float32), "a")
            await make(s, 1, "a")
            mean = asyncio.create_task(s.pull(gradient_step=2))
            of_phase = asyncio.create_task(s.pull(gradient_step=2, phase=0))
            first = asyncio.create_task(s.pull(revision=1, phase=0))
            other = asyncio.create_task(s.pull(revision=1))
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in (mean, of_phase, first, other))
            await s.members({"a": 2, "b": 1})
            await asyncio.wait_for(gone(mean, 0), 20)
            await asyncio.wait_for(gone(of_phase, 0), 20)
            await asyncio.wait_for(gone(first, 0), 20)
            assert (await s.status()).fragments[0].phase == 1
            told = {"kind": GRADIENT, "gradient_step": 2, "tokens": 1}
            late = await s.push(gradient("b", 2), "b", phase=0, **told)
            assert (late.verdict, late.result_revision) == (pb.VERDICT_STALE, 2)
            for phase in ({"phase": 0}, {}):
                pull = asyncio.create_task(s.pull(gradient_step=2, **phase))
                await asyncio.wait_for(gone(pull, 0), 20)
            assert not other.done(), "it named no phase: it waits for whatever becomes revision 1"
            other.cancel()
        async with service(tmp_path, rules) as s:
            assert (await s.status()).fragments[0].phase == 0, "which was not stored"
            await s.members({"a": 2, "b": 1})
            async with asyncio.timeout(20):
                while (await s.status()).fragments[0].phase != 1:
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


PAIR = flat_layout(SIZE, 2)
ONE_STEP = RULES.model_copy(update={"min_replicas": 1, "warmup_steps": 1})


async def one_step(s: Service, incarnation: int) -> None:
    for fragment in (0, 1):
        push = {"kind": GRADIENT, "gradient_step": 1, "fragment": fragment}
        await s.push(gradient("a", 1), "a", incarnation=incarnation, **push)
        await s.pull(fragment=fragment, gradient_step=1)


async def stepped(s: Service) -> None:
    """A run of one replica, at the end of its synchronous phase."""
    await s.members({"a": 1})
    await s.open(PAIR, "a")
    for fragment in (0, 1):
        await s.offer(np.ones(SIZE, np.float32), "a", fragment=fragment)
    await one_step(s, 1)


async def offer(s: Service, fragment: int, value: float, incarnation: int) -> pb.PushResponse:
    values = np.full(SIZE, value, np.float32)
    given = {"fragment": fragment, "incarnation": incarnation, "base_revision": 0}
    return await s.offer(values, "a", **given)


async def where(s: Service) -> list[tuple[int, int]]:
    return [(f.revision, f.gradient_step) for f in (await s.status()).fragments]


def test_offers_count_together_or_not_at_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ONE_STEP) as s:
            await stepped(s)
            assert (await offer(s, 0, 7.0, 1)).verdict == pb.VERDICT_ACCEPTED
            await s.members({"a": 2})  # it died before it could offer fragment 1
            async with asyncio.timeout(30):
                while await where(s) != [(0, 0), (0, 0)]:
                    await asyncio.sleep(0.01)
            await one_step(s, 2)
            await offer(s, 1, 3.0, 2)
        async with service(tmp_path, ONE_STEP) as s:  # a restart keeps the offer that waits
            await s.members({"a": 2})
            s.seqs = {("a", 2, 0): 1, ("a", 2, 1): 1}
            assert await where(s) == [(0, 1), (0, 1)]
            assert (await offer(s, 1, 3.0, 2)).verdict == pb.VERDICT_DUPLICATE
            assert (await offer(s, 0, 3.0, 2)).verdict == pb.VERDICT_ACCEPTED
            for fragment in (0, 1):
                _, values = await s.pull(fragment=fragment, revision=1)
                assert np.array_equal(values, np.full(SIZE, 3, np.float32))

    asyncio.run(scenario())


def test_a_rank_that_goes_while_the_offer_is_written_takes_no_answer_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.full(SIZE, 7, np.float32)

    async def scenario() -> None:
        async with service(tmp_path, ONE_STEP) as s:
            await stepped(s)
            given = {"kind": pb.PUSH_KIND_PARAMETERS, "base_revision": 0}
            whole = s.header(values, "a", **given)
            with SlowDisk(monkeypatch, "o00000000") as disk:
                ranks = [
                    asyncio.create_task(
                        s.send(*iter_push(rank_header(whole, rank, 2, a, b), values[a:b]))
                    )
                    for rank, (a, b) in enumerate(((0, CUT), (CUT, SIZE)))
                ]
                await disk.until(lambda d: len(d.at_once) > 0)
                left = left_calls(monkeypatch)
                ranks[0].cancel()
                async with asyncio.timeout(20):
                    while not left:
                        await asyncio.sleep(0.002)
            assert (await ranks[1]).verdict == pb.VERDICT_ACCEPTED

    asyncio.run(scenario())


def left_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ranks whose calls have ended at the service from now on."""
    left: list[int] = []
    leave = Staging.leave

    def noted(staging: Staging, staged: Staged, shard: Shard) -> None:
        leave(staging, staged, shard)
        left.append(shard.header.rank)

    monkeypatch.setattr(Staging, "leave", noted)
    return left
