"""A push whose round has closed: told so before its values come, and alike on all ranks."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import grpc
import numpy as np
import pytest

from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.service import (
    RUN,
    Service,
    code_of,
    flat_layout,
    iter_push,
    rank_header,
    service,
)
from syncline_testing.slow_disk import SlowDisk
from syncline_testing.sync_process import LAYOUT, known_run, process

SIZE, CUT = 5000, 1234
RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)
STALE, DUPLICATE, ACCEPTED = pb.VERDICT_STALE, pb.VERDICT_DUPLICATE, pb.VERDICT_ACCEPTED
VALUES = np.full(SIZE, 0.5, np.float32)


async def begun(s: Service) -> None:
    """Two replicas, and revision 0."""
    await s.members({"a": 1, "b": 1})
    for replica in ("a", "b"):
        await s.open(flat_layout(SIZE), replica)
    await s.offer(VALUES, "a")


async def too_early(s: Service, disk: SlowDisk) -> asyncio.Task[pb.PushResponse]:
    """What a rank of a is told of the round that b has closed, while that waits for the disk."""
    await s.push(VALUES, "b", base_revision=0)
    await disk.until(lambda d: len(d.at_once) == 1)
    header = rank_header(s.header(VALUES, "a", base_revision=0), 0, 2, 0, CUT)
    told = asyncio.create_task(s.send(next(iter(iter_push(header, VALUES[:1])))))
    for _ in range(50):
        assert (await s.status()).fragments[0].revision == 0
    assert not told.done()
    return told


async def until_staged(s: Service) -> None:
    """Until something of a push is in."""
    async with asyncio.timeout(20):
        while not s.shared.budget.used:
            await asyncio.sleep(0.005)


async def closed(s: Service, **again: int) -> list[pb.PushRequest]:
    """A round without a; the messages of a's push for it, of both ranks: headers, then chunks."""
    await s.members({"a": 1, "b": 1})
    for replica in ("a", "b"):
        await s.open(flat_layout(SIZE), replica)
    if not (await s.status()).fragments[0].initialised:
        await s.offer(VALUES, "a")
        await s.push(VALUES, "b", base_revision=0)
        await s.pull(revision=1)
    whole = s.header(VALUES, "a", base_revision=0, **again)
    headers = [rank_header(whole, 0, 2, 0, CUT), rank_header(whole, 1, 2, CUT, SIZE)]
    return [next(iter(iter_push(h, VALUES[:1]))) for h in headers]


def test_it_is_told_so_before_its_values_come(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            first, second = await closed(s)
            told = await s.send(first)  # no chunk follows
            assert (told.verdict, told.result_revision) == (STALE, 1)
            assert told.residual == pb.RESIDUAL_ACTION_RESTORE
            for part in (second, first):
                again = await s.send(part)
                assert (again.verdict, again.judged, again.result_revision) == (DUPLICATE, STALE, 1)
            assert s.shared.budget.used == 0
            await s.push(VALUES, "b", base_revision=1)
            assert (await s.status()).fragments[0].expected == ["a", "b"], "a goes on from there"
            pushed = await s.push(VALUES, "a", base_revision=1)
            assert (pushed.verdict, pushed.result_revision) == (ACCEPTED, 2)

    asyncio.run(scenario())


def test_a_rank_that_missed_it_hears_it_alone_after_a_restart(tmp_path: Path) -> None:
    """The others have heard it, and need not push again."""

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            first, _ = await closed(s)
            assert (await s.send(first)).verdict == STALE
        async with service(tmp_path, RULES) as s:
            _, second = await closed(s, seq=first.header.seq)
            told = await s.send(second)
            assert (told.verdict, told.result_revision) == (STALE, 1)

    asyncio.run(scenario())


def test_a_rank_hears_it_alone_where_a_kill_has_undone_what_the_others_were_told_of(
    tmp_path: Path,
) -> None:
    """Of a service that publishes before it writes: who was told is gone, and nobody waits."""
    rules = RULES.model_copy(update={"durability": "async"})
    known_run(tmp_path, rules)
    whole = pb.PushHeader(
        run=RUN, epoch=1, replica="a", incarnation=1, seq=2, inner_steps=1, base_revision=0,
        kind=pb.PUSH_KIND_PSEUDO_GRADIENT, codec=pb.CODEC_FP32,
        boxes=[LAYOUT.fragments[0].boxes[0].to_proto()],
    )  # fmt: skip
    cut = LAYOUT.fragments[0].numel // 3
    first = rank_header(whole, 0, 2, 0, cut)
    second = rank_header(whole, 1, 2, cut, LAYOUT.fragments[0].numel)
    with process(tmp_path) as p:
        p.ready()
        p.open()
        p.push(1.0, "a", kind=pb.PUSH_KIND_PARAMETERS)
        p.push(0.5, "b", base_revision=0)
        told = p.stub.Push(iter([pb.PushRequest(header=first)]), timeout=20)
        assert (told.verdict, told.result_revision, told.epoch) == (STALE, 1, 1)
        p.signal(signal.SIGKILL)
        p.ended()
    with process(tmp_path) as p:
        p.ready()
        told = p.stub.Push(iter([pb.PushRequest(header=second)]), timeout=20)
        assert (told.verdict, told.epoch) == (STALE, 2)
        assert p.pull(told.result_revision)[0] == [1.0, 0.5][told.result_revision]


def test_nothing_is_told_of_a_round_that_a_kill_may_yet_undo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank that was told would wait for its result, and the others for that rank."""

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await begun(s)
            with SlowDisk(monkeypatch, "r00000001") as disk:
                told = await too_early(s, disk)
            assert ((await told).verdict, (await told).result_revision) == (STALE, 1)
            assert s.shared.budget.used == 0

    asyncio.run(scenario())


def test_ranks_are_told_of_one_that_is_not_where_the_phase_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeoutSettings, "call_s", property(lambda _: 0.5))

    async def scenario() -> None:
        async with service(tmp_path, RULES.model_copy(update={"warmup_steps": 4})) as s:
            await s.members({"a": 1})
            await s.open(flat_layout(SIZE), "a")
            await s.offer(VALUES, "a")
            gradient = {"kind": pb.PUSH_KIND_GRADIENT, "gradient_step": 1, "seq": 5}
            first = rank_header(s.header(VALUES, "a", **gradient), 0, 2, 0, CUT)
            waits = asyncio.create_task(s.send(*iter_push(first, VALUES[:CUT])))
            await until_staged(s)
            ahead = s.header(VALUES, "a", **gradient | {"gradient_step": 3})
            second = rank_header(ahead, 1, 2, CUT, SIZE)
            why = "gradient_step: 3 where 1 is next"
            for call in (s.send(*iter_push(second, VALUES[CUT:])), waits):
                with pytest.raises(grpc.aio.AioRpcError, match=why) as error:
                    await call
                assert code_of(error.value) == "INVALID_REQUEST"

    asyncio.run(scenario())


def test_ranks_of_a_push_that_began_in_time_are_told_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await begun(s)
            whole = s.header(VALUES, "a", base_revision=0)
            ranks = [(0, 0, CUT), (1, CUT, SIZE)]
            parts = [
                list(iter_push(rank_header(whole, rank, 2, start, stop), VALUES[start:stop]))
                for rank, start, stop in ranks
            ]
            waits = asyncio.create_task(s.send(*parts[0]))
            await until_staged(s)
            await s.push(VALUES, "b", base_revision=0)
            assert not waits.done()
            answers = [await s.send(*parts[1]), await waits]
            assert [(one.verdict, one.result_revision) for one in answers] == [(STALE, 1)] * 2

    asyncio.run(scenario())


def test_one_of_a_push_that_was_followed_by_another_is_not_told_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await closed(s)
            newer = s.header(VALUES, "a", base_revision=1, seq=9)
            parts = list(iter_push(rank_header(newer, 0, 2, 0, CUT), VALUES[:CUT]))
            waits = asyncio.create_task(s.send(*parts))
            await until_staged(s)
            older = s.header(VALUES, "a", base_revision=0, seq=8)
            with pytest.raises(grpc.aio.AioRpcError, match="a newer push") as error:
                await s.send(*iter_push(rank_header(older, 0, 2, 0, CUT), VALUES[:CUT]))
            assert code_of(error.value) == "INVALID_REQUEST"
            assert not waits.done()
            waits.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize("still", [{}, {"a": 2}], ids=["lost", "another life"])
def test_no_round_waits_for_one_that_was_lost_while_its_header_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still: dict[str, int]
) -> None:
    """What it was to be told goes for nobody any more: it holds no lease."""

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await begun(s)
            with SlowDisk(monkeypatch, "r00000001") as disk:
                told = await too_early(s, disk)
                await s.members({"b": 1, **still})
            assert (await told).verdict == pb.VERDICT_FENCED
            await s.push(VALUES, "b", base_revision=1)
            async with asyncio.timeout(20):
                await s.pull(revision=2)

    asyncio.run(scenario())
