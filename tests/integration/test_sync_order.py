"""Staleness and order: each case of docs/protocol.md has one outcome, and tests that hold it.

The cases that no other file tests are here; ``HELD_BY`` says where each of them is:
where a rule of a case is broken, one of its tests fails.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import re
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.codec import Float32
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import runner
from syncline_sync.receiving import TOGETHER
from syncline_sync.shard import Shard
from syncline_sync.staged import Staged
from syncline_sync.staging import Staging
from syncline_testing.service import (
    Service,
    code_of,
    flat_layout,
    iter_push,
    pushed,
    rank_header,
    service,
)

ROOT = Path(__file__).parents[2]
SIZE, CUT, GRAIN = 10_000, 4_500, 1024
RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)
ROUNDS = "unit/sync/test_fragment_rounds.py"
QUORUM = "unit/sync/test_quorum.py"
STAGING = "unit/sync/test_staging.py"
WAITS = "unit/sync/test_staging_cut.py"
HEADERS = "integration/test_sync_headers.py"
ROUND = "integration/test_sync_round.py"
HERE = "integration/test_sync_order.py"
FAULTS = "integration/test_sync_faults.py"
HOGS = "integration/test_sync_hogs.py"
RANKS = "integration/test_sync_ranks.py"
FUZZ = "fuzz/test_streams.py"

HELD_BY = {
    "the same push again, its round open": (
        (ROUNDS, "test_a_push_into_an_open_round_is_accepted_and_a_second_sending_is_a_duplicate"),
    ),
    "the same push again, its round committed": (
        (ROUNDS, "test_a_push_that_a_committed_round_contains_is_a_duplicate_of_its_verdict"),
        (ROUND, "test_a_service_that_restarts_stands_where_it_was"),
    ),
    "the same push again, which a crash lost": (
        (ROUNDS, "test_what_is_committed_is_known_after_a_restart_and_what_is_not_is_taken"),
        (ROUNDS, "test_what_a_restart_lost_is_stale_where_its_round_has_closed_without_it"),
    ),
    "a lower `seq` than one that entered a round": (
        (ROUNDS, "test_an_older_push_than_the_one_in_the_open_round_is_a_duplicate_too"),
        (ROUNDS, "test_an_older_push_than_the_one_that_was_committed_is_a_duplicate_too"),
    ),
    "another `base_revision` than the newest": (
        (ROUNDS, "test_another_base_than_the_rounds_is_stale_and_names_the_newest"),
    ),
    "the same, at most `age_max` older": (
        (QUORUM, "test_a_late_push_counts_in_the_next_round_and_its_replica_goes_on_at_once"),
        (QUORUM, "test_a_push_is_stale_past_the_age_limit"),
    ),
    "a second late push into a round": (
        (QUORUM, "test_of_a_replica_a_round_takes_one_late_push_and_one_in_time"),
    ),
    "a second push into a round": (
        (ROUNDS, "test_a_second_push_of_a_replica_in_a_round_is_stale"),
    ),
    "another `epoch`": (
        (ROUNDS, "test_another_epoch_is_stale"),
        (HERE, "test_a_push_of_another_epoch_is_told_without_its_other_ranks"),
    ),
    "no lease, or another incarnation's": (
        (ROUNDS, "test_who_does_not_hold_the_lease_is_fenced_whatever_it_sends"),
        (HERE, "test_who_holds_no_lease_is_told_before_its_chunks"),
        (FAULTS, "test_who_loses_its_lease_is_told_wherever_its_call_waits"),
    ),
    "a new life, its older one's push in the round": (
        (ROUNDS, "test_a_new_life_whose_older_life_is_in_the_round_is_stale_and_waits_for_it"),
    ),
    "a run that nobody knows": (
        (HERE, "test_a_push_for_a_run_that_is_not_there_is_told"),
        (ROUND, "test_a_run_of_old_that_nobody_knows_any_more_fences_whoever_pushes"),
    ),
    "a run that has ended": ((FAULTS, "test_a_run_that_ends_answers_all_its_pushes"),),
    "a run without a layout": ((HERE, "test_a_push_before_there_is_a_layout_is_told"),),
    "a fragment without revision 0": (
        (ROUNDS, "test_the_first_offer_sets_revision_0_and_all_others_are_told_to_pull"),
    ),
    "ranks that disagree (on steps, say)": (
        (STAGING, "test_ranks_that_disagree_are_told_in_what"),
        (STAGING, "test_ranks_of_which_one_names_no_base_are_told"),
        (STAGING, "test_ranks_that_name_two_phases_are_told"),
        (HERE, "test_a_rank_that_disagrees_on_the_steps_is_told_and_the_others_wait_for_it"),
    ),
    "ranks that overlap, or leave something out": (
        (STAGING, "test_ranks_that_do_not_tile_are_all_told"),
        (RANKS, "test_ranks_that_overlap_are_all_told_and_nothing_changes"),
    ),
    "a rank that dies in mid-push and comes back": (
        (HERE, "test_a_rank_that_dies_in_mid_push_and_comes_back_makes_it_whole"),
        (RANKS, "test_a_rank_that_sends_again_while_its_older_calls_hang_is_taken"),
    ),
    "a rank that comes back in a new life": (
        (STAGING, "test_a_newer_push_leaves_a_whole_older_one_to_its_judge"),
        (HERE, "test_a_new_life_takes_the_place_of_a_push_that_its_older_one_left_half"),
    ),
    "a rank that never comes": (
        (HOGS, "test_pushes_that_lack_a_rank_for_ever_do_not_keep_another_run_out"),
    ),
    "a rank that is refused at its header": (
        (WAITS, "test_the_ranks_of_one_that_was_refused_are_told_why_if_it_does_not_come_again"),
        (WAITS, "test_a_rank_that_was_refused_and_comes_again_is_as_any_other"),
        (HEADERS, "test_the_ranks_of_one_that_was_refused_are_told_why"),
        (HEADERS, "test_a_header_of_no_member_is_nothing_to_a_members_ranks"),
    ),
    "a newer `seq` while an older push is not whole": (
        (STAGING, "test_a_newer_push_replaces_an_unfinished_older_one"),
        (STAGING, "test_a_newer_push_leaves_a_whole_older_one_to_its_judge"),
    ),
    "an older `seq` once a newer push has begun": (
        (STAGING, "test_a_newer_push_replaces_an_unfinished_older_one"),
    ),
    "a push that is whole, its call cut before the answer": (
        (HERE, "test_a_whole_push_whose_call_is_cut_is_judged_all_the_same"),
        (RANKS, "test_a_rank_that_missed_the_answer_gets_it_again"),
    ),
    "values that are not finite, or a norm over 1e20": (
        (ROUNDS, "test_parameters_that_are_not_finite_are_refused"),
        (FAULTS, "test_poison_counts_for_nothing_and_is_told"),
    ),
    "a stream that is not what its header says": (
        (FUZZ, "test_a_push_counts_if_it_is_wholly_valid_and_else_changes_nothing"),
        (FUZZ, "test_a_push_that_breaks_one_rule_changes_nothing"),
    ),
}


def vector(value: float) -> Float32:
    return np.full(SIZE, value, np.float32)


async def started(s: Service) -> None:
    """A run of one replica at revision 0, which is zeros."""
    await s.members({"a": 1})
    await s.open(flat_layout(SIZE), "a")
    await s.offer(vector(0), "a")


def ranks_of(s: Service, values: Float32, **given: Any) -> list[list[pb.PushRequest]]:
    """The messages of both ranks of a push of two."""
    whole = s.header(values, "a", base_revision=0, **given)
    cuts = ((0, CUT), (CUT, SIZE))
    return [
        list(iter_push(rank_header(whole, rank, 2, a, b), values[a:b]))
        for rank, (a, b) in enumerate(cuts)
    ]


async def staged(s: Service, elements: int) -> None:
    """Wait until so many elements are in, of any push."""
    staging = s.residence.runs["run"].staging
    assert staging is not None
    async with asyncio.timeout(20):
        while (
            sum(
                shard.received
                for push in staging._staged.values()
                for shard in (*push.coming.values(), *push.shards.values())
            )
            != elements
        ):
            await asyncio.sleep(0.005)


async def holds(s: Service, value: float) -> None:
    """Revision 1 is out, one push brought it, and nothing is held."""
    header, values = await s.pull(revision=1)
    assert np.array_equal(values, vector(-value)) and len(header.contributions) == 1
    assert s.shared.budget.used == 0 and not s.faults


def test_each_case_of_the_protocol_has_a_test() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    table = text.split("case by case\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \|", table, flags=re.MULTILINE)
    assert rows[2:] == list(HELD_BY)
    held = itertools.chain.from_iterable(HELD_BY.values())
    for path, named in itertools.groupby(sorted(held), key=lambda where: where[0]):
        tree = ast.parse((ROOT / "tests" / path).read_text())
        there = {f.name for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)}
        assert {name for _, name in named} <= there


def test_a_push_for_a_run_that_is_not_there_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await started(s)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await s.push(vector(1), "a", run="nobody-s", base_revision=0)
            assert code_of(refused.value) == "RUN_UNKNOWN"
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            assert not (tmp_path / "runs" / "nobody-s").exists()

    asyncio.run(scenario())


def test_a_push_before_there_is_a_layout_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await s.members({"a": 1})
            with pytest.raises(grpc.aio.AioRpcError, match="call OpenRun first") as refused:
                await s.offer(vector(1), "a")
            assert code_of(refused.value) == "INVALID_REQUEST"

    asyncio.run(scenario())


def test_a_push_of_another_epoch_is_told_without_its_other_ranks(tmp_path: Path) -> None:
    """They are told the same, and have no reason to come."""

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await started(s)
            for epoch in (0, 2):
                first, _ = ranks_of(s, vector(0.5), epoch=epoch)
                answer = await s.send(*first, timeout=5)
                assert (answer.verdict, answer.epoch) == (pb.VERDICT_STALE, 1)
            assert s.shared.budget.used == 0

    asyncio.run(scenario())


def test_who_holds_no_lease_is_told_before_its_chunks(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await started(s)
            await s.members({"a": 2})
            for replica, incarnation in (("a", 1), ("a", 3), ("b", 1)):
                header = s.header(vector(0.5), replica, incarnation=incarnation, base_revision=0)
                call = s.stub.Push(timeout=5)
                await call.write(pb.PushRequest(header=header))
                assert (await call).verdict == pb.VERDICT_FENCED
                assert s.shared.budget.used == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("field", ["inner_steps", "tokens", "first_step", "last_step"])
def test_a_rank_that_disagrees_on_the_steps_is_told_and_the_others_wait_for_it(
    tmp_path: Path, field: str
) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await started(s)
            steps = {"inner_steps": 4, "tokens": 40, "first_step": 0, "last_step": 4}
            first, second = ranks_of(s, vector(0.5), **steps)
            waits = asyncio.create_task(pushed(s.stub, first))
            await staged(s, CUT)
            other = pb.PushRequest()
            other.CopyFrom(second[0])
            setattr(other.header, field, 3)
            with pytest.raises(grpc.aio.AioRpcError, match=f"{field}: rank 1 says 3") as refused:
                await pushed(s.stub, [other, *second[1:]])
            assert code_of(refused.value) == "INVALID_REQUEST" and not waits.done()
            answer = await pushed(s.stub, second)
            assert (await waits).verdict == answer.verdict == pb.VERDICT_ACCEPTED
            await holds(s, 0.5)

    asyncio.run(scenario())


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_dies_in_mid_push_and_comes_back_makes_it_whole(
    tmp_path: Path, dying: int
) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await started(s)
            ranks = ranks_of(s, vector(0.5))
            living = ranks[1 - dying]
            size = CUT if dying else SIZE - CUT
            waits = asyncio.create_task(pushed(s.stub, living))
            await staged(s, size)
            call = s.stub.Push()
            await call.write(ranks[dying][0])
            await call.initial_metadata()
            grain = np.frombuffer(ranks[dying][1].chunk.data[: 4 * GRAIN], np.float32)
            chunk = list(iter_push(ranks[dying][0].header, grain))[1]
            for _ in range(TOGETHER):
                await call.write(chunk)
            await staged(s, size + TOGETHER * GRAIN)
            call.cancel()
            await staged(s, size)
            assert not waits.done()
            answer = await pushed(s.stub, ranks[dying])
            assert (await waits).verdict == answer.verdict == pb.VERDICT_ACCEPTED
            await holds(s, 0.5)

    asyncio.run(scenario())


def test_a_new_life_takes_the_place_of_a_push_that_its_older_one_left_half(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await started(s)
            first, _ = ranks_of(s, vector(0.25))
            waits = asyncio.create_task(pushed(s.stub, first))
            await staged(s, CUT)
            await s.members({"a": 2})
            assert (await waits).verdict == pb.VERDICT_FENCED
            assert s.shared.budget.used == 0
            ranks = ranks_of(s, vector(0.5), incarnation=2)
            answers = await asyncio.gather(*(pushed(s.stub, rank) for rank in ranks))
            assert {answer.verdict for answer in answers} == {pb.VERDICT_ACCEPTED}
            await holds(s, 0.5)
            assert (await pushed(s.stub, first)).verdict == pb.VERDICT_FENCED

    asyncio.run(scenario())


@pytest.mark.parametrize("stale", [False, True], ids=["accepted", "stale"])
@pytest.mark.parametrize("again", ["before", "after"])
def test_a_whole_push_whose_call_is_cut_is_judged_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: bool, again: str
) -> None:
    """Sent again before that, it waits for the same judgement; after it, it is told of that."""
    judged, ended = threading.Event(), asyncio.Event()
    check, leave = Staged.check_tiling, Staging.leave

    def slowly(self: Staged, numel: int) -> None:
        assert judged.wait(20)
        check(self, numel)

    def left(self: Staging, staged: Staged, shard: Shard) -> None:
        leave(self, staged, shard)
        ended.set()

    async def scenario() -> None:
        async with service(tmp_path, RULES) as s:
            await started(s)
            monkeypatch.setattr(runner, "FEW_SPANS", 0)  # what is slow here is the pool's
            monkeypatch.setattr(Staged, "check_tiling", slowly)
            monkeypatch.setattr(Staging, "leave", left)
            verdict = pb.VERDICT_STALE if stale else pb.VERDICT_ACCEPTED
            residual = pb.RESIDUAL_ACTION_RESTORE if stale else pb.RESIDUAL_ACTION_KEEP
            # Of one that is offered where there are parameters, that is known once it is whole.
            kind = {"kind": pb.PUSH_KIND_PARAMETERS} if stale else {"base_revision": 0}
            parts = list(iter_push(s.header(vector(0.5), "a", **kind), vector(0.5)))
            call = asyncio.create_task(pushed(s.stub, parts))
            staging = (await s.residence.run(s.run)).staging
            assert staging is not None
            async with asyncio.timeout(20):
                while not any(push.submitted for push in staging._staged.values()):
                    await asyncio.sleep(0.005)
            call.cancel()
            await asyncio.wait_for(ended.wait(), 20)
            if again == "before":
                answer = asyncio.create_task(pushed(s.stub, parts))
                await asyncio.sleep(0.05)
                assert not answer.done()
                judged.set()
                assert (await answer).verdict == verdict
            judged.set()
            async with asyncio.timeout(20):
                while s.shared.budget.used:
                    await asyncio.sleep(0.005)
            told = await pushed(s.stub, parts)
            assert (told.verdict, told.judged) == (pb.VERDICT_DUPLICATE, verdict)
            assert told.residual == residual
            if not stale:
                await holds(s, 0.5)

    try:
        asyncio.run(scenario())
    finally:
        judged.set()
