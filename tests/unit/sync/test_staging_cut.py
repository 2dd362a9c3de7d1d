"""A push whose ranks do not come is cut, and its room is free; one that moves is not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline_proto.errors import InvalidRequest, Unreachable
from syncline_proto.layout import Box
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget
from syncline_sync.places import Places
from syncline_sync.shard import shard_of
from syncline_sync.slabs import Slabs
from syncline_sync.staged import Staged
from syncline_sync.staging import REFUSED_MAX, Staging
from syncline_testing.staging import BYTES, LAYOUT, SIZE, fill, half, header, joined, run, sent

STILL_S = 10.0


def cut_at(staging: Staging, *times: float, hold_s: float = 1e9) -> None:
    for now_s in times:
        staging.drop_stalled(now_s, STILL_S, hold_s)


async def is_cut(staged: Staged, who: str) -> None:
    with pytest.raises(Unreachable, match=f"^push: {who} did not come for 10 s; send it again"):
        await staged.answer


def test_a_rank_that_never_comes_costs_its_replica_the_room() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        empty = header(rank=0, ranks=2, boxes=[])
        staged, whole = sent(staging, empty)
        assert not whole
        cut_at(staging, 0.0, 9.9)
        assert not staged.answer.done() and budget.used == BYTES
        cut_at(staging, 10.0)
        await is_cut(staged, "rank 1 of 2")
        assert budget.used == 0
        again, _ = joined(staging, empty)
        assert again is not staged and again.reservation.granted.done(), "it may be sent again"

    run(scenario)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_ranks_of_one_that_was_refused_are_told_why_if_it_does_not_come_again(
    is_first: bool,
) -> None:
    """Once. The same push and others begin after that as any."""

    async def scenario(staging: Staging, budget: Budget) -> None:
        if is_first:
            staging.refuse(half(1), InvalidRequest("boxes: no."))
        staged, _ = sent(staging, half(0))
        if not is_first:
            with pytest.raises(InvalidRequest, match="^codec: rank 1 says"):
                joined(staging, half(1, codec=pb.CODEC_BF16))
        cut_at(staging, 0.0, 9.9)
        assert not staged.answer.done(), "it may come again"
        cut_at(staging, 10.0)
        why = "^push: rank 1 of 2 was refused, and did not come again for 10 s: (boxes|codec): "
        with pytest.raises(InvalidRequest, match=why):
            await staged.answer
        for seq, now_s in ((1, 20.0), (2, 40.0)):
            again, _ = sent(staging, half(0, seq=seq))
            cut_at(staging, now_s, now_s + 10.0)
            await is_cut(again, "rank 1 of 2")

    run(scenario)


def test_each_rank_that_was_refused_is_known_until_it_comes_again() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        for rank in (1, 0):
            staging.refuse(half(rank), InvalidRequest(f"boxes: not {rank}."))
        staged, _ = sent(staging, half(0))  # one of them has come again
        cut_at(staging, 0.0, 10.0)
        with pytest.raises(InvalidRequest, match="rank 1 of 2 was refused, .*: boxes: not 1"):
            await staged.answer

    run(scenario)


def test_a_rank_that_was_refused_and_comes_again_is_as_any_other() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        staging.refuse(half(1), InvalidRequest("boxes: no."))
        staged, _ = sent(staging, half(0))
        assert joined(staging, half(1))[0] is staged
        cut_at(staging, 0.0, 10.0)
        await is_cut(staged, "rank 1 of 2")
        staging.refuse(half(1, "b"), InvalidRequest("boxes: no."))
        sent(staging, half(0, "b"))
        assert sent(staging, half(1, "b"))[1], "it is whole"

    run(scenario)


@pytest.mark.parametrize("other", [1, 1 << 40], ids=["older", "newer"])
def test_a_refused_header_of_another_push_hides_no_refusal_of_one_that_is_waited_for(
    other: int,
) -> None:
    """What its seq is worth is unknown: nobody else has said it. Nor are any number kept."""

    async def scenario(staging: Staging, budget: Budget) -> None:
        staging.refuse(half(1, seq=other), InvalidRequest("boxes: of another."))
        staging.refuse(half(1, seq=2), InvalidRequest("boxes: no."))
        staging.refuse(half(1, seq=other), InvalidRequest("boxes: of another."))
        staged, _ = sent(staging, half(0, seq=2))
        for seq in range(3, 9):
            staging.refuse(half(1, seq=seq), InvalidRequest("boxes: of others."))
        (kept,) = staging._refused.values()
        assert sorted(seq for _, seq in kept) == [2, 7, 8]
        cut_at(staging, 0.0, 10.0)
        with pytest.raises(InvalidRequest, match="boxes: no.$"):
            await staged.answer

    run(scenario)


def test_where_more_are_refused_than_are_remembered_that_is_told() -> None:
    """Each but the last comes again."""
    ranks = REFUSED_MAX + 3

    def part(rank: int) -> pb.PushHeader:
        return header(rank=rank, ranks=ranks, boxes=[])

    async def scenario(staging: Staging, budget: Budget) -> None:
        for rank in range(1, ranks):
            staging.refuse(part(rank), InvalidRequest("boxes: no."))
        staged, _ = sent(staging, part(0))
        for rank in range(1, ranks - 1):
            sent(staging, part(rank))
        cut_at(staging, 0.0, 10.0)
        told = (
            rf"rank {ranks - 1} of {ranks} did not come for 10 s \(or was refused: 2 refusals are"
        )
        with pytest.raises(Unreachable, match=told):
            await staged.answer

    run(scenario)


def test_a_push_that_crawls_is_cut_where_others_wait_for_its_room() -> None:
    """It moves all the time, only too slowly for any round."""

    async def scenario(staging: Staging, budget: Budget) -> None:
        crawling, shard = joined(staging, half(0))
        whole, _ = sent(staging, header("b"))
        for second in range(100):
            staging.note(crawling, shard, float(second))
            cut_at(staging, float(second), hold_s=30.0)
        assert not crawling.answer.done(), "nobody waits"
        waiting, _ = joined(staging, header("c"))
        cut_at(staging, 100.0, hold_s=30.0)
        with pytest.raises(Unreachable, match="not whole 30 s after it had room, and others wait"):
            await crawling.answer
        assert waiting.reservation.granted.done() and not whole.answer.done()

    run(scenario, limit=2 * BYTES)


def test_a_push_whose_own_replica_alone_waits_is_not_cut() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        crawling, shard = joined(staging, half(0))
        joined(staging, half(0, fragment=1))
        assert budget.waiters == 1
        staging.note(crawling, shard, 99.0)
        cut_at(staging, 0.0, 100.0, hold_s=30.0)
        assert not crawling.answer.done(), "it holds up nobody else"
        joined(staging, half(0, "b"))
        cut_at(staging, 100.0, hold_s=30.0)
        assert crawling.answer.done()

    run(scenario, limit=BYTES)


def test_a_push_that_waits_for_room_itself_does_not_crawl() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        sent(staging, header("b"))
        waiting, _ = joined(staging, half(0))
        cut_at(staging, *(10.0 * n for n in range(10)), hold_s=30.0)
        assert not waiting.answer.done()

    run(scenario, limit=BYTES)


def test_nobody_need_be_in_the_call_for_that() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        staged, shard = joined(staging, half(0))
        fill(shard)
        staging.add(staged, shard, now_s=0.0)
        staging.leave(staged, shard)
        cut_at(staging, 0.0, 10.0)
        assert budget.used == 0

    run(scenario)


def test_a_replica_whose_ranks_are_far_apart_is_not_cut() -> None:
    """Rank 0 is done with both fragments while rank 1 goes through the first, chunk by chunk."""

    async def scenario(staging: Staging, budget: Budget) -> None:
        first, _ = sent(staging, half(0))
        second, _ = sent(staging, half(0, fragment=1))
        idle, _ = sent(staging, half(0, "b"))
        _, slow = joined(staging, half(1))
        for tenth in range(30):
            staging.note(first, slow, 9.0 * tenth)
            cut_at(staging, 9.0 * tenth, 9.0 * tenth + 8.9)
        assert not first.answer.done() and not second.answer.done()
        await is_cut(idle, "rank 1 of 2")
        cut_at(staging, 29 * 9.0 + 10.0)
        await is_cut(second, "rank 1 of 2")

    run(scenario)


@pytest.mark.parametrize(("hogs", "fit"), [(3, 1), (7, 3), (8, 8)])
def test_a_push_for_which_nothing_comes_holds_the_line_up_once(hogs: int, fit: int) -> None:
    """However often it is sent again: so a wait is bounded by how many were in line before."""

    async def scenario(staging: Staging, budget: Budget) -> None:
        seqs = dict.fromkeys([f"hog-{i}" for i in range(hogs)], 0)

        def ask_again() -> None:
            for name, seq in seqs.items():
                if not any(staged.key.replica == name for staged in staging._staged.values()):
                    seqs[name] = seq + 1
                    for fragment in (0, 1):
                        joined(staging, half(0, name, fragment=fragment, seq=seq + 1))

        ask_again()
        honest, _ = joined(staging, header("a"))
        periods = 0
        while not honest.reservation.granted.done():
            cut_at(staging, periods * STILL_S)
            ask_again()
            periods += 1
        assert periods <= 2 + 2 * hogs // fit, "the first to be cut begins at 0"

    run(scenario, limit=fit * BYTES)


def test_a_rank_that_is_in_keeps_nothing_alive_by_its_other_pushes() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        hog, _ = sent(staging, half(0))
        cut_at(staging, 0.0)
        for at_s in (4.0, 8.0, 9.9):
            other, shard = joined(staging, half(0, fragment=1))
            staging.note(other, shard, at_s)
        cut_at(staging, 10.0)
        await is_cut(hog, "rank 1 of 2")

    run(scenario)


def test_time_in_line_is_not_the_ranks_own() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        holder, _ = sent(staging, header("a"))
        waiting, _ = joined(staging, half(0, "b"))
        cut_at(staging, 0.0, 50.0)
        assert not waiting.answer.done() and not holder.answer.done(), "whole: it is being judged"
        staging.drop(holder, Unreachable("over"))
        cut_at(staging, 100.0, 109.0)
        assert not waiting.answer.done()
        cut_at(staging, 110.0)
        await is_cut(waiting, "ranks 0, 1 of 2")

    run(scenario, limit=BYTES)


def test_a_sentence_names_a_few_ranks_only() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        staged, _ = joined(staging, header(rank=3, ranks=60_000, boxes=[]))
        cut_at(staging, 0.0, 10.0)
        await is_cut(staged, "ranks 0, 1, 2, 3, 4, 5, 6, 7, … of 60000")

    run(scenario)


EVENTS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.sampled_from((0.5, 2.0, 9.0, 11.0))),
    max_size=30,
)
"""(fragment, rank, seconds until it sends a third of its shard)."""


@given(EVENTS)
@settings(deadline=None)
def test_a_push_is_cut_when_and_only_when_no_missing_rank_moves(
    events: list[tuple[int, int, float]],
) -> None:
    """Against a model that keeps every movement there was."""

    def piece(fragment: int, rank: int) -> pb.PushHeader:
        a, b = list(pairwise((0, 3, 6, SIZE)))[rank]
        boxes: list[Any] = [Box(fragment, (a,), (b - a,)).to_proto()]
        return header(fragment=fragment, rank=rank, ranks=3, boxes=boxes)

    async def scenario(staging: Staging, budget: Budget) -> None:
        places, slabs = Places(LAYOUT), Slabs()
        shards = {(f, r): shard_of(places, piece(f, r), slabs) for f in (0, 1) for r in range(3)}
        pushes = [[staging.join(shards[f, r]) for r in range(3)][0] for f in (0, 1)]
        sent_thirds = dict.fromkeys(shards, 0)
        alive_s = [0.0, 0.0]
        now_s = 0.0
        cut_at(staging, now_s)
        for fragment, rank, pause_s in events:
            until_s = now_s + pause_s
            while now_s < until_s:
                now_s += 0.5
                cut_at(staging, now_s)
                for push, alive in zip(pushes, alive_s, strict=True):
                    over = push.answer.done() and not push.submitted
                    assert over == (not push.submitted and now_s >= alive + STILL_S)
            push, shard = pushes[fragment], shards[fragment, rank]
            if push.submitted or push.answer.done() or sent_thirds[fragment, rank] == 3:
                continue
            for other in (0, 1):
                if not pushes[other].answer.done() and sent_thirds[other, rank] < 3:
                    alive_s[other] = now_s
            sent_thirds[fragment, rank] += 1
            staging.note(push, shard, now_s)
            if sent_thirds[fragment, rank] == 3:
                fill(shard)
                staging.add(push, shard, now_s)

    run(scenario)
