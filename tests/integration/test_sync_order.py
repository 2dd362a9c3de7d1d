"""Staleness and order: each case of docs/protocol.md has one outcome, and a test that holds it.

The cases that no other file tests are here; ``HELD_BY`` says where each of them is.
"""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.codec import Float32
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.receiving import TOGETHER
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
STAGING = "unit/sync/test_staging.py"
HERE = "integration/test_sync_order.py"

HELD_BY = {
    "the same push again, its round open": f"{ROUNDS}::test_a_push_into_an_open_round_is_accepted_"
    "and_a_second_sending_is_a_duplicate",
    "the same push again, its round committed": f"{ROUNDS}::test_a_push_that_a_committed_round_"
    "contains_is_a_duplicate_of_its_verdict",
    "the same push again, which a crash lost": f"{ROUNDS}::test_what_is_committed_is_known_after_a_"
    "restart_and_what_is_not_is_taken",
    "a lower `seq` than one that entered a round": f"{ROUNDS}::test_an_older_push_than_the_one_in_"
    "the_open_round_is_a_duplicate_too",
    "another `base_revision` than the newest": f"{ROUNDS}::test_another_base_than_the_rounds_is_"
    "stale_and_names_the_newest",
    "a second push into a round": f"{ROUNDS}::test_a_second_push_of_a_replica_in_a_round_is_stale",
    "another `epoch`": f"{ROUNDS}::test_another_epoch_is_stale",
    "no lease, or another incarnation's": "integration/test_sync_faults.py::test_who_loses_its_"
    "lease_is_told_wherever_its_call_waits",
    "a new life, its older one's push in the round": f"{ROUNDS}::test_a_new_life_whose_older_life_"
    "is_in_the_round_is_stale_and_waits_for_it",
    "a run that nobody knows": f"{HERE}::test_a_push_for_a_run_that_is_not_there_is_told",
    "a run that has ended": "integration/test_sync_faults.py::test_a_run_that_ends_answers_all_"
    "its_pushes",
    "a run without a layout": f"{HERE}::test_a_push_before_there_is_a_layout_is_told",
    "a fragment without revision 0": f"{ROUNDS}::test_the_first_offer_sets_revision_0_and_all_"
    "others_are_told_to_pull",
    "ranks that disagree (on steps, say)": f"{HERE}::test_a_rank_that_disagrees_on_the_steps_is_"
    "told_and_the_others_wait_for_it",
    "ranks that overlap, or leave something out": "integration/test_sync_ranks.py::test_ranks_that_"
    "overlap_are_all_told_and_nothing_changes",
    "a rank that dies in mid-push and comes back": f"{HERE}::test_a_rank_that_dies_in_mid_push_and_"
    "comes_back_makes_it_whole",
    "a rank that comes back in a new life": f"{HERE}::test_a_new_life_takes_the_place_of_a_push_"
    "that_its_older_one_left_half",
    "a rank that never comes": "integration/test_sync_hogs.py::test_pushes_that_lack_a_rank_for_"
    "ever_do_not_keep_another_run_out",
    "a newer `seq` while an older push is not whole": f"{STAGING}::test_a_newer_push_replaces_an_"
    "unfinished_older_one",
    "an older `seq` once a newer push has begun": f"{STAGING}::test_a_newer_push_replaces_an_"
    "unfinished_older_one",
    "a push that is whole, its call cut before the answer": "integration/test_sync_ranks.py::"
    "test_a_rank_that_missed_the_answer_gets_it_again",
    "values that are not finite": "integration/test_sync_faults.py::test_poison_counts_for_"
    "nothing_and_is_told",
    "a stream that is not what its header says": "fuzz/test_streams.py::test_a_push_counts_if_it_"
    "is_wholly_valid_and_else_changes_nothing",
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
    staging = s.host._runs["run"].staging
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
    for where in HELD_BY.values():
        path, name = where.split("::")
        tree = ast.parse((ROOT / "tests" / path).read_text())
        assert name in {f.name for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)}, where


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
