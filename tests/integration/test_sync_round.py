"""One fragment through the real service: pushes in, revisions out, restarts in between."""

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
from syncline_testing.service import RUN, Service, code_of, flat_layout, service

LAYOUT = flat_layout(10)
AVERAGE = RunSettings.model_validate(
    {"strategy": "local-sgd", "min_replicas": 2, "codec": {"up": "fp32", "down": "fp32"}}
)
TOGETHER = RunSettings.model_validate(
    AVERAGE.model_dump() | {"min_replicas": 1, "expected_replicas": 2}
)


def vector(*values: float) -> np.ndarray:
    return np.resize(np.array(values, np.float32), 10)


async def started(s: Service, *replicas: str) -> None:
    """Members with incarnation 1, the layout open, revision 0 = ones."""
    await s.members(dict.fromkeys(replicas, 1))
    for replica in replicas:
        await s.open(LAYOUT, replica)
    assert (await s.offer(vector(1.0), replicas[0])).verdict == pb.VERDICT_ACCEPTED


def test_two_pushes_are_averaged_and_published(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            await started(s, "a", "b")
            first = await s.push(vector(0.5), "a", base_revision=0, tokens=7)
            assert (first.verdict, first.result_revision) == (pb.VERDICT_ACCEPTED, 1)
            await s.push(vector(0.25), "b", base_revision=0, tokens=5)
            header, values = await s.pull(revision=1)
            assert np.array_equal(values, vector(1.0 - 0.375))
            assert header.committed_tokens == 12
            assert [c.weight for c in header.contributions] == [0.5, 0.5]
            assert not s.faults

    asyncio.run(scenario())


def test_a_late_push_stays_in_its_round_whoever_comes_and_goes(tmp_path: Path) -> None:
    """The members change while nobody else has pushed, and it is in the sum all the same."""
    given: dict[str, Any] = {"expected_replicas": 3, "quorum": 2, "late": {"power": 0.0}}
    rules = AVERAGE.model_dump() | given
    two = {"a": vector(0.0), "b": vector(0.0)}

    async def scenario() -> None:
        async with service(tmp_path, RunSettings.model_validate(rules)) as s:
            await started(s, "a", "b", "c")
            for name, values in (two | {"c": vector(0.0)}).items():
                await s.push(values, name, base_revision=0)
            for name, values in two.items():
                await s.push(values, name, base_revision=1)
            await s.pull(revision=2, header_only=True)
            late = await s.push(vector(0.75), "c", base_revision=1)
            assert (late.verdict, late.counts_in) == (pb.VERDICT_ACCEPTED, 3)
            await s.members({"a": 1, "b": 1, "c": 1, "d": 1})
            for name, values in two.items():
                await s.push(values, name, base_revision=2)
            header, values = await s.pull(revision=3)
            assert [(c.replica, c.age) for c in header.contributions] == [
                ("c", 1), ("a", 0), ("b", 0),
            ]  # fmt: skip
            assert values == pytest.approx(vector(1.0 - 0.75 / 3))
            assert not s.faults

    asyncio.run(scenario())


async def first_closed_by(s: Service) -> str:
    await s.pull(revision=1)
    (told,) = [r for r in s.reports if isinstance(r, RoundReport) and r.revision == 1]
    return told.closed_by


def test_the_first_round_does_not_count_who_was_refused_at_its_join(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, TOGETHER) as s:
            await started(s, "a")
            await s.members({"a": 1, "stranger": 1})
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await s.open(flat_layout(9), "stranger")
            assert code_of(refused.value) == "LAYOUT_MISMATCH"
            await s.push(vector(0.5), "a", base_revision=0)
            await s.members({"a": 1})
            await s.members({"a": 1, "b": 1})
            await s.open(LAYOUT, "b")
            (state,) = (await s.status()).fragments
            assert (state.revision, state.arrived) == (0, ["a"]), "it waits for the other"
            await s.push(vector(0.25), "b", base_revision=0)
            header, _ = await s.pull(revision=1)
            assert [c.weight for c in header.contributions] == [0.5, 0.5]
            assert await first_closed_by(s) == "everyone"
            assert not s.faults

    asyncio.run(scenario())


def test_the_first_round_does_not_wait_for_who_came_and_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, TOGETHER) as s:
            await started(s, "a", "b")
            await s.push(vector(0.5), "a", base_revision=0)
            await s.members({"a": 1})
            assert await first_closed_by(s) == "loss"

    asyncio.run(scenario())


def test_who_came_before_a_restart_and_is_gone_after_it_is_not_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, TOGETHER) as s:
            await started(s, "a", "b")
        async with service(tmp_path, TOGETHER) as s:
            await s.members({"a": 1, "b": 1})
            await s.push(vector(0.5), "a", base_revision=0, seq=2)
            await s.members({"a": 1, "stranger": 1})
            assert await first_closed_by(s) == "loss"

    asyncio.run(scenario())


def test_metrics_tell_of_a_round_that_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            metrics = s.shared.metrics.registry

            def told(name: str, **labels: str) -> float | None:
                return metrics.get_sample_value(f"syncline_{name}", {"run": RUN, **labels})

            await started(s, "a", "b")
            offered = told("bytes_total", direction="up")
            assert offered == 40, "ten elements of fp32"
            await s.push(vector(0.5), "a", base_revision=0)
            await s.push(vector(0.25), "b", base_revision=0)
            await s.pull(revision=1)
            kind = {"kind": "pseudo-gradient", "closed_by": "everyone"}
            assert told("rounds_total", **kind) == 1
            assert told("round_seconds_count") == told("commit_seconds_count") == 2
            assert told("pushes_total", verdict="accepted") == 3
            assert told("bytes_total", direction="up") == 3 * offered
            assert told("bytes_total", direction="down") == 40
            assert told("fragment_revision", fragment="0") == 1
            for replica in ("a", "b"):
                assert told("replica_weight", fragment="0", replica=replica) == 0.5

    asyncio.run(scenario())


def test_a_service_that_restarts_stands_where_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            await started(s, "a", "b")
            await s.push(vector(0.5), "a", base_revision=0)
            await s.push(vector(0.25), "b", base_revision=0)
            _, before = await s.pull(revision=1)
            await s.push(vector(0.5), "a", base_revision=1)  # folded, not committed: lost
        async with service(tmp_path, AVERAGE) as s:
            await s.members({"a": 1, "b": 1})
            _, after = await s.pull(newest=True)
            assert np.array_equal(before, after)
            committed = await s.push(vector(0.5), "a", base_revision=0, seq=2)
            assert committed.verdict == pb.VERDICT_DUPLICATE
            assert committed.judged == pb.VERDICT_ACCEPTED
            assert committed.result_revision == 1
            again = await s.push(vector(0.5), "a", base_revision=1, seq=3)
            assert again.verdict == pb.VERDICT_ACCEPTED
            await s.push(vector(0.5), "b", base_revision=1, seq=2)
            _, values = await s.pull(revision=2)
            assert np.array_equal(values, before - vector(0.5))

    asyncio.run(scenario())


def test_a_run_of_old_that_nobody_knows_any_more_fences_whoever_pushes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, AVERAGE) as s:
            await started(s, "a")
        async with service(tmp_path, AVERAGE) as s:  # it has heard of no run since it began
            for number, replica in enumerate(("a", "stranger")):
                answer = await s.push(vector(0.5), replica, seq=9 + number, base_revision=0)
                assert answer.verdict == pb.VERDICT_FENCED
            kept = (await s.pull(newest=True))[1]
            assert np.array_equal(kept, vector(1.0)), "it may be read, as before"

    asyncio.run(scenario())


def test_a_late_push_is_stale_and_names_the_newest(tmp_path: Path) -> None:
    async def scenario() -> None:
        one = AVERAGE.model_copy(update={"min_replicas": 1})
        async with service(tmp_path, one) as s:
            await started(s, "a", "b")
            early = await s.push(vector(0.5), "a", base_revision=0)
            assert early.residual == pb.RESIDUAL_ACTION_KEEP
            await s.pull(revision=1)
            late = await s.push(vector(0.5), "b", base_revision=0)
            assert (late.verdict, late.result_revision) == (pb.VERDICT_STALE, 1)
            assert late.residual == pb.RESIDUAL_ACTION_RESTORE
            with pytest.raises(grpc.aio.AioRpcError) as gone:
                await s.push(vector(0.1), "a", base_revision=1)
                await s.push(vector(0.1), "b", base_revision=1)
                await s.pull(revision=2)
                await s.pull(revision=0)
            assert dict(gone.value.trailing_metadata())["syncline-code"] == "REVISION_GONE"
            assert dict(gone.value.trailing_metadata())["syncline-newest-revision"] == "2"

    asyncio.run(scenario())


def test_a_lost_replica_ends_the_wait_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        one = AVERAGE.model_copy(update={"min_replicas": 1})
        async with service(tmp_path, one) as s:
            await started(s, "a", "b")
            await s.push(vector(0.5), "a", base_revision=0)
            await s.pull(revision=1)
            await s.push(vector(0.5), "b", base_revision=1)
            await s.push(vector(0.5), "a", base_revision=1)
            await s.pull(revision=2)
            await s.push(vector(0.5), "a", base_revision=2)  # b is expected now
            waiting = asyncio.ensure_future(s.pull(revision=3))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await s.members({"a": 1})
            header, _ = await waiting
            assert [c.replica for c in header.contributions] == ["a"]

    asyncio.run(scenario())
