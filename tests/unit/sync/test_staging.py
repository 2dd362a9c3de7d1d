"""Pushes on their way in: within the budget, whole or not at all, none stuck behind another."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from syncline_proto.errors import InvalidRequest, Overloaded
from syncline_proto.ranges import RANGES_MAX
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.budget import Budget
from syncline_sync.core.record import Judgement
from syncline_sync.places import Places
from syncline_sync.shard import COUNT_MAX, RANKS_MAX, shard_of
from syncline_sync.slabs import Slabs
from syncline_sync.staging import Staging
from syncline_testing.calls import calls_counted
from syncline_testing.staging import BYTES, LAYOUT, SIZE, fill, half, header, joined, run, sent

YES = Judgement(verdict=pb.VERDICT_ACCEPTED, judged=pb.VERDICT_ACCEPTED, result=1)
GRADIENT: dict[str, Any] = {"kind": pb.PUSH_KIND_GRADIENT, "gradient_step": 1}
NO = Judgement(verdict=pb.VERDICT_FENCED, result=0)


def test_a_push_is_whole_when_its_last_rank_is_in_and_one_answer_reaches_all() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        first, whole = sent(staging, half(1))
        assert not whole
        assert budget.used == BYTES, "room is taken for all ranks at once"
        second, whole = sent(staging, half(0))
        assert whole and second is first
        assert first.norm == pytest.approx(SIZE**0.5)
        assert [p.extent.spans().tolist() for p in first.payloads()] == [[[0, 4]], [[4, 8]]]
        staging.settle(first, YES)
        assert (await first.answer, budget.used) == (YES, 0)
        missed = staging.answered(half(0))
        assert missed is not None
        assert (missed.verdict, missed.judged) == (pb.VERDICT_DUPLICATE, pb.VERDICT_ACCEPTED)
        assert staging.answered(half(0, seq=2)) is None

    run(scenario)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"rank": 1, "ranks": 1}, "^rank:"),
        ({"ranks": 0}, "^ranks:"),
        ({"ranks": RANKS_MAX + 1}, "^ranks:"),
        ({"fragment": 2, "boxes": []}, "^fragment:"),
        ({"seq": 0}, "^seq:"),
        ({"seq": 2**64 - 1}, "^seq:"),
        ({"kind": 0}, "^kind:"),
        ({"kind": 9}, "^kind:"),
        ({"codec": 0}, "^codec:"),
        ({"codec": 77}, "^codec:"),
        ({**GRADIENT, "codec": pb.CODEC_BF16}, "^codec:"),
        ({**GRADIENT, "gradient_step": 0}, "^gradient_step:"),
        ({"base_revision": None}, "^base_revision:"),
        ({"base_revision": COUNT_MAX + 1}, "^base_revision:"),
        ({"inner_steps": 0}, "^inner_steps:"),
        ({**GRADIENT, "inner_steps": 0}, "^inner_steps:"),
        ({"data": [pb.DataRange(start=1, stop=1)]}, r"^data\.0:"),
        ({"data": [pb.DataRange()] * (RANGES_MAX + 1)}, "^data: "),
        ({"inner_steps": 2**64 - 1}, "^inner_steps:"),
        ({"tokens": 2**63}, "^tokens:"),
        ({"first_step": 2, "last_step": 1}, "^first_step:"),
        ({"boxes": [pb.Box(tensor=0, offsets=[0, 0], sizes=[1])]}, "^boxes:"),
        ({"boxes": [pb.Box(tensor=0, offsets=[1], sizes=[SIZE])]}, "^boxes:"),
        ({"boxes": [pb.Box(tensor=1, offsets=[0], sizes=[SIZE])]}, "^boxes:"),
        ({"boxes": [pb.Box(tensor=0, offsets=[2**63], sizes=[2**63])]}, "^boxes:"),
        ({"boxes": [pb.Box(tensor=0, offsets=[0], sizes=[SIZE])] * 2}, "^boxes:"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_a_header_that_breaks_a_rule_is_refused_and_takes_no_room(
    wrong: dict[str, Any], word: str
) -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        with pytest.raises(InvalidRequest, match=word):
            joined(staging, header(**wrong))
        assert budget.used == 0

    run(scenario)


@pytest.mark.parametrize(
    "other",
    [
        {"epoch": 2},
        {"kind": pb.PUSH_KIND_PARAMETERS},
        {"codec": pb.CODEC_BF16},
        {"base_revision": 1},
        {"gradient_step": 1},
        {"inner_steps": 2},
        {"tokens": 2},
        {"first_step": 1, "last_step": 1},
        {"last_step": 2},
        {"data": [pb.DataRange(stop=3)]},
        {"phase": 0},
        {"phase": 1},
        {"ranks": 3},
    ],
    ids=str,
)
def test_ranks_that_disagree_are_told_in_what(other: dict[str, Any]) -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        staged, _ = sent(staging, half(0))
        with pytest.raises(InvalidRequest, match=f"^{next(iter(other))}:"):
            joined(staging, half(1, **other))
        assert not staged.answer.done(), "the rank that was right is not harmed"

    run(scenario)


def test_ranks_that_name_two_phases_are_told() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        sent(staging, half(0, phase=0))
        with pytest.raises(InvalidRequest, match=r"^phase: rank 1 says 1 where rank 0 .* said 0\."):
            joined(staging, half(1, phase=1))

    run(scenario)


def test_ranks_of_which_one_names_no_base_are_told() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        sent(staging, half(0, kind=pb.PUSH_KIND_PARAMETERS))
        with pytest.raises(InvalidRequest, match="^base_revision: some ranks"):
            joined(staging, half(1, kind=pb.PUSH_KIND_PARAMETERS, base_revision=None))

    run(scenario)


def test_ranks_that_do_not_tile_are_all_told() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        staged, _ = sent(staging, half(0))
        short = pb.Box(tensor=0, offsets=[5], sizes=[7])
        wrong, shard = joined(staging, header(rank=1, ranks=2, boxes=[short]))
        fill(shard)
        assert staging.add(wrong, shard, now_s=0.0)
        with pytest.raises(InvalidRequest, match="element 4 of 12 is missing") as untiled:
            staged.check_tiling(SIZE)
        staging.drop(staged, untiled.value)
        with pytest.raises(InvalidRequest):
            await staged.answer
        assert budget.used == 0

    run(scenario)


def test_ranks_cannot_name_more_than_the_fragment_has() -> None:
    """So what a push holds stays within its room, however many ranks it claims."""

    async def scenario(staging: Staging, budget: Budget) -> None:
        staged, _ = joined(staging, header(rank=0, ranks=1000))
        with pytest.raises(InvalidRequest, match="^boxes: rank 1 has 12 elements"):
            joined(staging, header(rank=1, ranks=1000))
        assert len(staged.coming) == 1

    run(scenario)


def test_a_rank_that_begins_again_replaces_what_it_has_sent() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        staged, broken = joined(staging, header())
        again, shard = joined(staging, header())
        assert again is staged
        assert not staged.expects(broken)
        staging.leave(staged, broken)  # the old call ends only now
        assert staged.expects(shard)
        fill(shard)
        assert staging.add(staged, shard, now_s=0.0)
        assert budget.used == BYTES

    run(scenario)


def test_a_rank_that_is_in_need_not_send_again() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        staged, _ = sent(staging, half(0))
        again, shard = joined(staging, half(0))
        assert again is staged and not staged.expects(shard)
        assert not shard.extent.nbytes, "or many that ask again would hold much"
        staging.leave(staged, shard)
        _, whole = sent(staging, half(1))
        assert whole
        late, shard = joined(staging, half(1))
        assert late is staged and not staged.expects(shard)

    run(scenario)


def test_a_push_whose_calls_have_all_ended_gives_its_room_back() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        staged, shard = joined(staging, header())
        staging.leave(staged, shard)
        assert budget.used == 0
        kept, whole = sent(staging, half(0))
        assert not whole
        other, shard = joined(staging, half(1))
        staging.leave(other, shard)
        assert other is kept and budget.used == BYTES, "rank 0 is in: it stays"

    run(scenario)


@pytest.mark.parametrize("newer", [{"seq": 8}, {"seq": 1, "incarnation": 2}], ids=str)
def test_a_newer_push_leaves_a_whole_older_one_to_its_judge(newer: dict[str, Any]) -> None:
    """A new life begins with seq 1, whatever its older one sent."""

    async def scenario(staging: Staging, budget: Budget) -> None:
        whole, _ = sent(staging, header(seq=7))
        joined(staging, header(**newer))
        assert not whole.answer.done() and budget.used == 2 * BYTES
        staging.settle(whole, YES)
        assert await whole.answer == YES

    run(scenario)


def test_a_newer_push_replaces_an_unfinished_older_one() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        old, shard = joined(staging, header(seq=1))
        elsewhere, _ = joined(staging, header(seq=1, fragment=1))
        new, _ = joined(staging, header(seq=2))
        with pytest.raises(InvalidRequest, match="^seq:"):
            await old.answer
        staging.leave(old, shard)
        assert not new.answer.done() and not elsewhere.answer.done()
        assert budget.used == 2 * BYTES
        with pytest.raises(InvalidRequest, match="^seq: a newer push"):
            joined(staging, header(seq=1))
        assert budget.used == 2 * BYTES

    run(scenario)


def test_who_loses_its_lease_is_answered_and_its_room_is_free() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        lost, _ = joined(staging, half(0))
        other, _ = joined(staging, header("b"))
        submitted, _ = sent(staging, header(fragment=1))
        staging.fence(lambda _, replica, __: NO if replica == "a" else None)
        assert (await lost.answer).verdict == pb.VERDICT_FENCED
        assert not other.answer.done()
        assert not submitted.answer.done(), "it is whole: the fragment judges it"
        assert budget.used == 2 * BYTES
        assert staging.answered(half(0)) is None, "nothing is remembered of who is gone"

    run(scenario)


def test_ranks_of_one_push_share_one_place_in_the_queue() -> None:
    """Or rank 1 could wait behind another replica that waits for rank 0's room: for ever."""

    async def scenario(staging: Staging, budget: Budget) -> None:
        holder, _ = sent(staging, header("c"))
        a0, _ = joined(staging, half(0, "a"))
        b0, _ = joined(staging, half(0, "b"))
        a1, _ = joined(staging, half(1, "a"))
        b1, _ = joined(staging, half(1, "b"))
        assert (a0, b0) == (a1, b1)
        assert not a0.reservation.granted.done()
        staging.settle(holder, YES)
        assert a0.reservation.granted.done() and not b0.reservation.granted.done()
        staging.settle(a0, YES)
        assert b0.reservation.granted.done()
        staging.settle(b0, YES)
        assert budget.used == 0

    run(scenario, limit=BYTES)


def test_a_replica_that_pushes_all_at_once_does_not_keep_another_out() -> None:
    """Whoever holds less has the next room, though the other asked for more of it before."""

    async def scenario(staging: Staging, budget: Budget) -> None:
        held = [sent(staging, header("hog", fragment=f))[0] for f in range(2)]
        more = [joined(staging, header("hog", incarnation=2, fragment=f))[0] for f in range(2)]
        other, _ = joined(staging, header("other"))
        staging.settle(held[0], YES)
        assert other.reservation.granted.done()
        assert not any(staged.reservation.granted.done() for staged in more)
        staging.settle(held[1], YES)
        assert [staged.reservation.granted.done() for staged in more] == [True, False]

    run(scenario, limit=2 * BYTES)


def test_a_push_larger_than_the_budget_enters_alone() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        first, _ = joined(staging, header("a"))
        second, _ = joined(staging, header("b"))
        assert first.reservation.granted.done() and not second.reservation.granted.done()
        staging.settle(first, YES)
        assert second.reservation.granted.done()

    run(scenario, limit=1)


def test_who_goes_while_it_waits_holds_nobody_up() -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        holder, _ = sent(staging, header("a"))
        first, first_shard = joined(staging, header("b"))
        second, _ = joined(staging, header("c", codec=pb.CODEC_BF16))
        staging.leave(first, first_shard)
        assert second.reservation.granted.done(), "24 bytes fit beside 48 in 72"
        assert budget.used == BYTES + BYTES // 2
        staging.settle(holder, YES)

    run(scenario, limit=BYTES + BYTES // 2)


@pytest.mark.parametrize("granted", [False, True], ids=["waiting", "granted"])
def test_who_asks_again_keeps_the_place_in_which_it_had_no_room_yet(granted: bool) -> None:
    """Or a client whose call is cut while it waits starts behind everyone, time and again."""

    async def scenario(staging: Staging, budget: Budget) -> None:
        holder, _ = sent(staging, header("a"))
        cut, cut_shard = joined(staging, header("b"))
        behind, _ = joined(staging, header("c"))
        if granted:
            staging.settle(holder, YES)
            assert cut.reservation.granted.done()
            holder, _ = joined(staging, header("a", seq=2))
        staging.leave(cut, cut_shard)
        if granted:
            assert behind.reservation.granted.done(), "a place in the line holds nobody up"
        again, _ = joined(staging, header("b"))
        staging.settle(behind if granted else holder, YES)
        assert again.reservation.granted.done() is not granted
        assert (holder if granted else behind).reservation.granted.done() is granted

    run(scenario, limit=BYTES)


@pytest.mark.parametrize("end", ["newer", "fenced"])
def test_a_place_in_the_line_ends_with_the_lease_and_with_a_newer_push(end: str) -> None:
    async def scenario(staging: Staging, budget: Budget) -> None:
        holder, _ = sent(staging, header("a"))
        cut, cut_shard = joined(staging, header("b"))
        behind, _ = joined(staging, header("c"))
        staging.leave(cut, cut_shard)
        if end == "fenced":
            staging.fence(lambda _, replica, __: NO if replica == "b" else None)
        joined(staging, header("b", seq=2 if end == "newer" else 1))
        staging.settle(holder, YES)
        assert behind.reservation.granted.done()

    run(scenario, limit=BYTES)


def test_who_is_told_to_try_later_keeps_its_place_and_its_older_push() -> None:
    async def scenario(_: Staging, __: Budget) -> None:
        budget = Budget(BYTES, waiters_max=2)
        staging = Staging("run", LAYOUT, budget)
        holder, _shard = sent(staging, header("a"))
        cut, cut_shard = joined(staging, header("b"))
        behind, _shard = joined(staging, header("c"))
        staging.leave(cut, cut_shard)
        older, older_shard = joined(staging, header("d"))
        for refused in (header("b"), header("d", seq=2)):
            with pytest.raises(Overloaded):
                joined(staging, refused)
        assert not older.answer.done()
        staging.leave(older, older_shard)
        again, _shard = joined(staging, header("b"))
        staging.settle(holder, YES)
        assert again.reservation.granted.done() and not behind.reservation.granted.done()

    run(scenario)


def test_to_begin_a_push_takes_no_longer_the_more_are_under_way() -> None:
    counts: list[int] = []

    async def scenario(staging: Staging, budget: Budget, under_way: int) -> None:
        for number in range(under_way):
            joined(staging, header(f"r{number}"))
        shard = shard_of(Places(LAYOUT), header("last"), Slabs())
        with calls_counted() as made:
            staged = staging.join(shard)
            staging.answer(header("nobody"), YES)
            staging.drop(staged, InvalidRequest("no more"))
        counts.append(made.count)

    for under_way in (5, 500):
        run(partial(scenario, under_way=under_way), limit=1000 * BYTES)
    assert counts[0] == counts[1]
