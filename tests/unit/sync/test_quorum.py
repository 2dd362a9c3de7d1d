"""Rounds that close without everyone: the quorum, its grace, and pushes that come late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.policy import GRACE_SHARE
from syncline_sync.core.record import SEQS_KEPT, ClosedBy, Closing, Judgement
from syncline_testing.pure import PureFragment, shares, whole_push
from syncline_testing.world import DEADLINE_S, World, rules

NONE, ONE = np.zeros(2, np.float32), np.ones(2, np.float32)
ACCEPTED, DUPLICATE, STALE = pb.VERDICT_ACCEPTED, pb.VERDICT_DUPLICATE, pb.VERDICT_STALE
PLAIN = {"penalty": {"enabled": False}, "min_replicas": 1}


def of_three(**given: Any) -> World:
    """Two of three are a quorum; all have pushed once."""
    w = World("a", "b", "c", **{**PLAIN, "expected_replicas": 3, "quorum": 2, **given})
    w.round("a", "b", "c")
    return w


def late(w: World, replica: str, age: int = 1, **given: Any) -> Judgement:
    return w.push(replica, base=w.core.saved.revision - age, **given)


def ages(closing: Closing) -> list[tuple[str, int]]:
    return [(c.replica, c.age) for c in closing.saved.contributions]


# When it closes


def test_a_round_closes_with_its_quorum_and_without_overlap_at_once() -> None:
    w = of_three()
    w.push("a")
    w.waits()
    w.push("b")
    assert ages(w.closes(ClosedBy.QUORUM)) == [("a", 0), ("b", 0)]
    w.push("a")
    w.adopt(b=None)
    w.waits()  # b is gone, c is not
    w.adopt(c=None)
    w.closes(ClosedBy.LOSS)


def test_the_first_round_waits_for_all_who_start_together() -> None:
    w = World("a", "b", "c", **PLAIN, expected_replicas=3, quorum=2)
    w.push("a")
    w.push("b")
    w.waits()
    w.push("c")
    w.closes(ClosedBy.EVERYONE)


def test_a_quorum_is_not_enough_where_the_minimum_is_more() -> None:
    w = of_three(min_replicas=3, expected_replicas=None, quorum=1)
    w.push("a")
    w.push("b")
    w.waits()
    w.push("c")
    w.closes(ClosedBy.EVERYONE)


def test_a_quorum_of_more_than_take_part_waits_for_all_of_them() -> None:
    w = of_three(quorum=5)
    w.push("a")
    w.push("b")
    w.waits()
    w.push("c")
    w.closes(ClosedBy.EVERYONE)
    w.push("a")
    w.now_s += DEADLINE_S
    w.closes(ClosedBy.DEADLINE)


def test_the_grace_is_half_of_what_overlap_hides_less_what_is_spent_already() -> None:
    w = of_three(sync_every=10, overlap_steps=5)
    w.core.published(0.5)
    w.now_s += 100.0
    w.round("a", "b", "c")  # nobody knows yet how long a step takes: 10 s from here on
    w.core.published(0.5)
    for pause_s in (0.0, 900.0):
        w.now_s += 100.0 + pause_s
        w.push("a", inner_steps=10)
        w.now_s += 2.0
        w.push("b", inner_steps=10)
        grace_s = GRACE_SHARE * 5 * 10.0 - 2.0 - 0.5
        assert w.core.look_at_s(w.now_s) == w.now_s + grace_s
        w.now_s += grace_s - 0.5
        w.waits()
        w.now_s += 0.5
        w.closes(ClosedBy.QUORUM)
        w.core.published(0.5)


def test_a_grace_that_is_set_is_kept_and_who_comes_in_it_is_in_time() -> None:
    w = of_three(grace_seconds=5.0)
    w.push("a")
    w.push("b")
    w.now_s += 4.0
    w.waits()
    w.push("c")
    w.closes(ClosedBy.EVERYONE)
    w.push("a")
    w.push("b")
    w.adopt(running=False)
    w.now_s += 50.0
    w.waits()
    w.adopt()
    w.closes(ClosedBy.QUORUM)


def test_the_synchronous_phase_waits_for_everyone_whatever_the_quorum() -> None:
    w = World("a", "b", "c", **PLAIN, expected_replicas=3, quorum=2, warmup_steps=3)
    for step in (1, 2):
        w.gradient("a", step)
        w.gradient("b", step)
        w.waits()
        w.gradient("c", step)
        w.closes(ClosedBy.EVERYONE)


def test_without_its_quorum_a_round_closes_at_its_deadline() -> None:
    w = of_three(quorum=3)
    w.push("a")
    w.now_s += DEADLINE_S
    w.closes(ClosedBy.DEADLINE)


# Who comes late


@pytest.mark.parametrize("quorum", [None, 3])
def test_with_its_minimum_a_round_closes_at_its_deadline_though_one_lives_and_is_silent(
    quorum: int | None,
) -> None:
    w = of_three(min_replicas=2, quorum=quorum)
    w.push("a")
    w.now_s += DEADLINE_S
    w.waits()  # for the minimum, however long
    w.push("b")
    assert ages(w.closes(ClosedBy.DEADLINE)) == [("a", 0), ("b", 0)]
    w.push("b")
    w.push("a")
    w.now_s += DEADLINE_S - 0.1
    w.waits()
    w.now_s += 0.1
    assert ages(w.closes(ClosedBy.DEADLINE)) == [("b", 0), ("a", 0)]


def test_a_late_push_counts_in_the_next_round_and_its_replica_goes_on_at_once() -> None:
    w = of_three()
    w.round_of_two()
    judged = late(w, "c", tokens=7)
    assert (judged.verdict, judged.result, judged.counts_in) == (ACCEPTED, 2, 3)
    assert judged.weight == pytest.approx(2**-0.5)
    assert w.core.arrived == () and w.core.expected == ("a", "b", "c")
    w.push("c")
    w.waits()
    w.push("a")
    closing = w.closes(ClosedBy.QUORUM)
    assert ages(closing) == [("c", 1), ("c", 0), ("a", 0)]
    assert [c.weight for c in closing.saved.contributions] == pytest.approx(
        [2**-0.5 / 3, 1 / 3, 1 / 3]
    )
    assert closing.saved.committed_tokens == 3 + 2 + 7 + 2
    aged = 2**-0.5
    assert closing.effective_sample_size == pytest.approx((2 + aged) ** 2 / (2 + aged**2))


def test_age_makes_a_push_count_for_less_and_the_others_not_for_more() -> None:
    settings = rules(**PLAIN, quorum=2, late={"power": 1.0}, outer={"lr": 1.0, "momentum": 0.0})
    f = PureFragment(settings, NONE, {"a": 1, "b": 1, "c": 1})
    f.push("a", ONE)
    f.push("b", ONE)
    f.close()
    f.push("c", 3 * ONE, base=0)
    f.push("a", ONE)
    f.push("b", NONE)
    closing = f.close()
    assert shares(closing) == pytest.approx({"c": 1 / 6, "a": 1 / 3, "b": 1 / 3})
    assert f.parameters == pytest.approx(-1.0 - (3.0 / 2 + 1.0) / 3)


def test_of_a_replica_a_round_takes_one_late_push_and_one_in_time() -> None:
    w = of_three()
    w.round_of_two()
    assert late(w, "c").verdict == ACCEPTED
    second = late(w, "c")
    assert (second.verdict, second.result) == (STALE, 2)
    assert w.push("c").verdict == ACCEPTED
    third = w.push("c")
    assert (third.verdict, third.result) == (STALE, 3)


@pytest.mark.parametrize(("age_max", "age", "verdict"), [
    (None, 2, ACCEPTED), (None, 3, STALE), (0, 1, STALE), (1, 1, ACCEPTED), (1, 2, STALE),
    (3, -1, STALE),
])  # fmt: skip
def test_a_push_is_stale_past_the_age_limit(
    age_max: int | None, age: int, verdict: pb.Verdict.ValueType
) -> None:
    w = of_three(late={"age_max": age_max})
    for _ in range(3):
        w.round_of_two()
    judged = late(w, "c", age)
    assert judged.verdict == verdict
    assert judged.result == 4


def test_a_barrier_takes_nothing_late() -> None:
    w = World("a", "b", "c", **PLAIN, expected_replicas=3)
    w.round("a", "b", "c")
    w.push("a")
    w.adopt(b=None, c=None)
    w.closes(ClosedBy.LOSS)
    w.adopt(b=2)
    assert late(w, "b").verdict == STALE


def test_the_deadline_counts_from_the_first_push_that_is_in_time() -> None:
    w = of_three(quorum=3, late={"age_max": 2})
    w.push("a")
    w.push("b")
    w.now_s += DEADLINE_S
    w.closes(ClosedBy.DEADLINE)
    late(w, "c")
    assert w.core.look_at_s(w.now_s) is None
    w.now_s += 10 * DEADLINE_S
    w.waits()
    w.push("a")
    assert w.core.look_at_s(w.now_s) == w.now_s + DEADLINE_S
    w.now_s += DEADLINE_S
    w.closes(ClosedBy.DEADLINE)


def test_a_round_has_its_whole_deadline_from_when_the_minimum_is_there_again() -> None:
    w = World("a", "b", "c", min_replicas=3)
    w.round("a", "b", "c")
    w.push("a")
    w.adopt(b=None)
    w.now_s += 10 * DEADLINE_S
    w.adopt(d=1, e=1)
    w.push("d")
    w.push("e")
    w.waits()  # for c, which is slow
    w.now_s += DEADLINE_S
    w.closes(ClosedBy.DEADLINE)


def test_what_came_late_counts_though_everybody_else_has_gone() -> None:
    w = of_three()
    w.round_of_two()
    late(w, "c")
    w.adopt(a=None, b=None)
    w.waits()  # for c's next
    w.adopt(c=None)
    assert ages(w.closes(ClosedBy.LOSS)) == [("c", 1)]


# Once


def test_a_late_push_that_comes_again_is_a_duplicate_before_its_commit_and_after() -> None:
    w = of_three()
    w.round_of_two()
    late(w, "c")
    seq = w.seqs["c"]
    again = late(w, "c", seq=seq)
    assert (again.verdict, again.judged, again.result, again.counts_in) == (
        DUPLICATE, ACCEPTED, 2, 3,
    )  # fmt: skip
    w.push("c")
    assert late(w, "c", seq=seq).verdict == DUPLICATE
    w.push("a")
    w.closes(ClosedBy.QUORUM)
    for core in (w.core, Fragment(w.settings, w.core.saved)):  # over a restart, too
        w.core = core
        w.adopt()
        again = w.push("c", seq=seq, base=1)
        assert (again.verdict, again.judged, again.result) == (DUPLICATE, ACCEPTED, 3)
        assert again.counts_in == 0


def test_what_a_restart_lost_counts_though_a_later_push_is_committed() -> None:
    w = of_three()
    w.round_of_two()
    late(w, "c")  # folded, but never committed
    w.core = Fragment(w.settings, w.core.saved)
    w.adopt()
    lost = w.seqs["c"]
    w.push("c")
    w.push("a")
    w.closes(ClosedBy.QUORUM)
    again = w.push("c", seq=lost, base=1)
    assert (again.verdict, again.counts_in) == (ACCEPTED, 4)
    w.round_of_two()
    assert w.push("c", seq=lost, base=1).verdict == DUPLICATE


def test_only_so_many_pushes_are_remembered_one_by_one() -> None:
    w = of_three(quorum=1, late={"age_max": 100})
    for _ in range(SEQS_KEPT + 3):
        w.push("a")
        w.closes(ClosedBy.QUORUM)
    last = w.core.saved.last["a"]
    assert len(last.before) == SEQS_KEPT and last.before[-1] == last.seq - 1
    assert w.push("a", seq=1, base=0).verdict == DUPLICATE, "so old that it must have been"
    assert last.until == last.before[0] - 1
    known = replace(last, before=tuple(s for s in last.before if s != last.seq - 2))
    w.core.saved = replace(w.core.saved, last={**w.core.saved.last, "a": known})
    assert late(w, "a", 2, seq=last.seq - 2).verdict == ACCEPTED


def test_another_life_has_none_of_the_pushes_before_it() -> None:
    w = of_three()
    w.adopt(a=2)
    w.push("a", seq=1)
    w.push("b")
    w.closes(ClosedBy.QUORUM)
    last = w.core.saved.last["a"]
    assert (last.incarnation, last.seq, last.before) == (2, 1, ())


def test_quorum_counts_from_the_next_round_on() -> None:
    w = of_three(quorum=None)
    w.push("a")
    w.push("b")
    w.settings = w.settings.model_copy(update={"quorum": 2})
    w.adopt()
    w.waits()
    w.push("c")
    w.closes(ClosedBy.EVERYONE)
    w.round_of_two()


def test_what_was_committed_before_rounds_had_a_quorum_is_known_after() -> None:
    w = of_three(quorum=None)
    w.round("a", "b", "c")
    older = w.seqs["a"] - 1
    w.settings = w.settings.model_copy(update={"quorum": 2})
    w.adopt()
    assert w.push("a", seq=older, base=1).verdict == DUPLICATE
    w.round_of_two()
    assert w.push("a", seq=older, base=1).verdict == DUPLICATE
    assert w.push("a", seq=older + 1, base=1).verdict == DUPLICATE


def test_a_push_of_no_base_is_no_late_one() -> None:
    w = of_three()
    judged = w.core.judge(0.0, whole_push("c", seq=99, base=None))
    assert judged.verdict == STALE
