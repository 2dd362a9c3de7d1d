"""A fragment's rounds, one transition after another, with time driven by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import record
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import ClosedBy, Kind
from syncline_testing.pure import whole_push
from syncline_testing.world import DEADLINE_S, World, rules

ACCEPTED, DUPLICATE = pb.VERDICT_ACCEPTED, pb.VERDICT_DUPLICATE
STALE, FENCED = pb.VERDICT_STALE, pb.VERDICT_FENCED
ANOMALOUS = pb.VERDICT_ANOMALOUS


# Revision 0


def test_the_first_offer_sets_revision_0_and_all_others_are_told_to_pull() -> None:
    core = Fragment(rules())
    core.adopt(0.0, {"a": 1, "b": 1}, rules(), True)
    with pytest.raises(InvalidRequest, match="revision 0"):
        core.judge(0.0, whole_push("a"))
    first = core.judge(0.0, whole_push("a", kind=Kind.PARAMETERS, base=None))
    assert (first.verdict, first.result, first.sets) == (ACCEPTED, 0, True)
    second = core.judge(0.0, whole_push("b", kind=Kind.PARAMETERS, base=None))
    assert (second.verdict, second.result, second.sets) == (STALE, 0, False)
    assert core.close(ClosedBy.OFFER).saved.revision == 0
    again = core.judge(0.0, whole_push("a", seq=2, kind=Kind.PARAMETERS, base=None))
    assert (again.verdict, again.sets) == (STALE, False)


def test_parameters_that_are_not_finite_are_refused() -> None:
    core = Fragment(rules())
    core.adopt(0.0, {"a": 1}, rules(), True)
    with pytest.raises(InvalidRequest, match="finite"):
        core.judge(0.0, whole_push("a", kind=Kind.PARAMETERS, base=None, norm=math.nan))
    with pytest.raises(InvalidRequest, match=r"its norm 1e\+30 is over 1e\+20"):
        core.judge(0.0, whole_push("a", kind=Kind.PARAMETERS, base=None, norm=1e30))
    assert not core.initialised
    assert core.due(0.0) is None


def test_who_offers_late_is_told_of_a_revision_that_is_there() -> None:
    """A round that is open may be waiting for that very replica."""
    w = World("a", "b")
    w.push("a")
    late = w.core.judge(w.now_s, whole_push("b", seq=9, kind=Kind.PARAMETERS, base=None))
    assert (late.verdict, late.result) == (STALE, w.core.saved.revision)


# Who is taken


def test_a_push_into_an_open_round_is_accepted_and_a_second_sending_is_a_duplicate() -> None:
    w = World("a", "b")
    first = w.push("a")
    assert (first.verdict, first.result, first.weight) == (ACCEPTED, 1, 1.0)
    again = w.push("a", seq=w.seqs["a"])
    assert (again.verdict, again.judged, again.result, again.weight) == (DUPLICATE, ACCEPTED, 1, 0)
    w.push("b", norm=math.nan)
    bad = w.push("b", seq=w.seqs["b"])
    assert (bad.verdict, bad.judged, bad.result, bad.non_finite) == (DUPLICATE, ANOMALOUS, 1, True)


def test_an_older_push_than_the_one_in_the_open_round_is_a_duplicate_too() -> None:
    w = World("a", "b", min_replicas=2)
    w.push("a", seq=10)
    older = w.push("a", seq=4)
    assert (older.verdict, older.judged, older.result, older.weight) == (DUPLICATE, ACCEPTED, 0, 0)


@pytest.mark.parametrize("norm", [1.0, math.nan])
def test_an_older_push_than_the_one_that_was_committed_is_a_duplicate_too(norm: float) -> None:
    """Whatever became of the newer, and whatever the older holds."""
    w = World("a", "b", "c")
    w.push("a", seq=10, norm=norm)
    w.push("b")
    w.closes(ClosedBy.EVERYONE)
    w.push("b")
    w.push("c")
    w.now_s += DEADLINE_S
    closed_by = w.core.due(w.now_s)
    assert closed_by is not None and w.core.close(closed_by).saved.revision == 2
    older = w.push("a", seq=9)
    assert (older.verdict, older.judged, older.result, older.weight) == (DUPLICATE, ACCEPTED, 2, 0)


def test_a_push_that_a_committed_round_contains_is_a_duplicate_of_its_verdict() -> None:
    w = World("a", "b", "c")
    w.push("a")
    w.push("b", norm=math.nan)
    w.closes(ClosedBy.EVERYONE)
    good = w.push("a", seq=w.seqs["a"], base=0)
    bad = w.push("b", seq=w.seqs["b"], base=0)
    assert (good.verdict, good.judged, good.result, good.non_finite) == (
        DUPLICATE, ACCEPTED, 1, False,
    )  # fmt: skip
    assert (bad.verdict, bad.judged, bad.result, bad.non_finite) == (DUPLICATE, ANOMALOUS, 1, True)
    much_older = w.push("a", seq=1, base=0)
    assert (much_older.verdict, much_older.weight) == (DUPLICATE, 0.0)
    w.round("a", "c")
    for core in (w.core, Fragment(w.settings, w.core.saved)):  # over a restart, too
        w.core = core
        w.adopt()
        bad = w.push("b", seq=w.seqs["b"], base=0)
        assert (bad.verdict, bad.judged, bad.result) == (DUPLICATE, ANOMALOUS, 1)


def test_what_is_committed_is_known_after_a_restart_and_what_is_not_is_taken() -> None:
    w = World("a", "b")
    w.round("a", "b")
    w.push("a")  # folded, but never committed
    saved = w.core.saved
    w.core = Fragment(w.settings, saved)
    w.adopt()
    assert w.push("b", seq=w.seqs["b"], base=0).verdict == DUPLICATE
    assert w.push("a", seq=w.seqs["a"]).verdict == ACCEPTED
    w.waits()
    w.push("b")
    w.closes(ClosedBy.EVERYONE)


def test_what_a_restart_lost_is_stale_where_its_round_has_closed_without_it() -> None:
    w = World("a", "b", "c")
    w.round("a", "b")
    w.push("a")  # folded, but never committed
    w.core = Fragment(w.settings, w.core.saved)
    w.adopt()
    w.push("b")
    w.push("c")
    w.now_s += DEADLINE_S
    w.closes(ClosedBy.DEADLINE)
    again = w.push("a", seq=w.seqs["a"], base=1)
    assert (again.verdict, again.result, w.core.arrived) == (STALE, 2, ())


def test_a_second_push_of_a_replica_in_a_round_is_stale() -> None:
    w = World("a", "b")
    w.push("a")
    second = w.push("a")
    assert (second.verdict, second.result, second.weight) == (STALE, 1, 0.0)
    assert w.core.arrived == ("a",)


@pytest.mark.parametrize("base", [0, 2, 99])
def test_another_base_than_the_rounds_is_stale_and_names_the_newest(base: int) -> None:
    w = World("a", "b")
    w.round("a", "b")
    late = w.push("a", base=base)
    assert (late.verdict, late.result) == (STALE, 1)
    assert w.core.arrived == ()


def test_another_epoch_is_stale() -> None:
    w = World("a", "b")
    w.round("a", "b")
    unheard = w.push("a", epoch=2)
    assert (unheard.verdict, unheard.result) == (STALE, 1)
    assert unheard.reason == "epoch 2 is none of this service's, this is 1."
    assert w.push("a", epoch=0).reason == "epoch 0 is none of this service's, this is 1."
    w.core.saved = replace(w.core.saved, epoch=3)
    assert w.push("a", epoch=2).reason == "epoch 2 has ended, this is 3."


def test_who_does_not_hold_the_lease_is_fenced_whatever_it_sends() -> None:
    w = World("a", "b")
    w.adopt(a=2)
    for kind in Kind:
        assert w.push("a", incarnation=1, kind=kind, gradient_step=1).verdict == FENCED
    assert w.push("a", incarnation=3).verdict == FENCED
    assert w.push("stranger").verdict == FENCED
    assert w.push("a", incarnation=2).verdict == ACCEPTED


def test_a_new_life_whose_older_life_is_in_the_round_is_stale_and_waits_for_it() -> None:
    w = World("a", "b")
    w.push("a")
    w.adopt(a=2)
    again = w.push("a", seq=1)
    assert (again.verdict, again.result) == (STALE, 1)


def test_an_anomalous_push_counts_as_arrived_with_weight_0() -> None:
    w = World("a", "b")
    bad = w.push("a", norm=math.inf)
    assert (bad.verdict, bad.weight, bad.non_finite, bad.result) == (ANOMALOUS, 0.0, True, 1)
    assert bad.reason.endswith(".")
    w.push("b")
    closing = w.closes(ClosedBy.EVERYONE)
    assert [c.weight for c in closing.saved.contributions] == [0.0, 1.0]
    assert closing.saved.committed_tokens == 1


def test_a_round_that_accepted_nothing_still_moves_the_revision() -> None:
    w = World("a", "b")
    w.push("a", norm=math.nan)
    w.push("b", norm=math.nan)
    closing = w.closes(ClosedBy.EVERYONE)
    assert (closing.total_weight, closing.saved.revision) == (0.0, 1)
    assert closing.effective_sample_size is None
    assert closing.saved.committed_tokens == 0


def test_a_norm_that_fp32_could_not_carry_counts_as_not_finite() -> None:
    w = World("a", "b", strategy="local-sgd")
    huge = w.push("a", norm=1e30)
    assert (huge.verdict, huge.non_finite) == (ANOMALOUS, True)
    assert "its norm 1e+30 is over 1e+20" in huge.reason
    assert "not finite" not in huge.reason


# Who is waited for


def test_a_joiner_is_never_waited_for_before_its_first_accepted_push() -> None:
    w = World("a", "b", "c")
    assert w.core.expected == ()
    w.round("a", "b")  # nobody waits for c, though it is a member
    w.push("a")
    assert w.core.expected == ("a", "b")
    w.push("c")
    w.waits()
    w.push("b")
    w.closes(ClosedBy.EVERYONE)
    w.push("a")
    assert w.core.expected == ("a", "b", "c")


def test_who_is_expected_is_fixed_when_the_round_opens() -> None:
    w = World("a", "b")
    w.round("a", "b")
    w.push("a")
    w.adopt(c=1)
    w.push("c")
    assert w.core.expected == ("a", "b")
    w.waits()


def test_an_anomalous_first_push_does_not_make_a_replica_expected() -> None:
    w = World("a", "b", "c")
    w.push("c", norm=math.nan)
    w.round("a", "b")
    w.push("a")
    assert w.core.expected == ("a", "b")


def test_a_loss_ends_the_wait_at_once_but_not_below_the_minimum() -> None:
    w = World("a", "b", "c")
    w.push("c")
    w.push("a")
    w.push("b")
    w.closes(ClosedBy.EVERYONE)
    w.push("a")
    w.adopt(b=None)
    w.waits()
    w.adopt(c=None)
    w.waits()  # the minimum is two
    w.adopt(d=1)
    w.push("d")
    w.closes(ClosedBy.LOSS)


def test_a_new_life_is_not_expected_in_the_open_round() -> None:
    w = World("a", "b", min_replicas=1)
    w.push("b")
    w.push("a")
    w.closes(ClosedBy.EVERYONE)
    w.push("a")
    assert w.core.expected == ("a", "b")
    w.adopt(b=2)
    w.closes(ClosedBy.LOSS)


def test_who_pushed_and_was_lost_counts_but_is_not_expected_again() -> None:
    """Or the next round would wait for it until the deadline."""
    w = World("a", "b")
    w.round("a", "b")
    w.push("a")
    w.adopt(a=None, c=1)
    w.push("b")
    closing = w.closes(ClosedBy.EVERYONE)  # a's push is in: nobody was waited for in vain
    assert [c.replica for c in closing.saved.contributions] == ["a", "b"]
    assert dict(closing.saved.taking_part) == {"b": 1}
    w.push("b")
    assert w.core.expected == ("b",)


def test_the_deadline_closes_a_round_with_the_minimum_and_only_then() -> None:
    w = World("a", "b", "c")
    w.push("c")
    w.round("a", "b")
    w.push("a")
    w.now_s += DEADLINE_S
    w.waits()
    assert w.core.look_at_s(w.now_s) is None, "only another push brings the minimum"
    w.push("b")
    assert w.closes(ClosedBy.DEADLINE).saved.revision == 2
    w.push("a")
    w.push("b")
    w.now_s += DEADLINE_S - 1
    w.waits()
    w.now_s += 1
    w.closes(ClosedBy.DEADLINE)


def test_a_paused_round_has_no_deadline_and_gets_a_whole_one_when_it_goes_on() -> None:
    w = World("a", "b", "c")
    w.push("c")
    w.round("a", "b")
    w.push("a")
    w.push("b")
    w.adopt(running=False)
    assert w.core.look_at_s(w.now_s) is None
    w.now_s += 10 * DEADLINE_S
    w.waits()
    w.adopt(running=True)
    w.waits()
    assert w.core.look_at_s(w.now_s) == w.now_s + DEADLINE_S
    w.now_s += DEADLINE_S
    w.closes(ClosedBy.DEADLINE)


def test_a_pause_does_not_keep_a_round_open_in_which_everyone_is() -> None:
    w = World("a", "b")
    w.adopt(running=False)
    w.round("a", "b")


# Settings


def test_settings_count_from_the_next_round_on() -> None:
    w = World("a", "b")
    w.push("a")
    w.settings = rules(outer={"lr": 0.1}, codec={"down": "fp32"})
    w.adopt()
    w.push("b")
    closing = w.closes(ClosedBy.EVERYONE)
    assert (closing.outer.lr, closing.saved.down) == (0.7, "bf16")
    closing = w.round("a", "b")
    assert (closing.outer.lr, closing.saved.down) == (0.1, "fp32")


@pytest.mark.parametrize("change", [{"codec": {"up": "fp32"}}, {"sync_every": 8}])
@pytest.mark.parametrize("restarted", [False, True], ids=["live", "over a restart"])
def test_norms_are_learnt_anew_when_they_cannot_be_compared(
    change: dict[str, Any], restarted: bool
) -> None:
    w = World("a", "b")
    w.round("a", "b")
    assert w.core.saved.statistics.pooled.count == 2
    w.settings = rules(**change)
    if restarted:
        w.core = Fragment(w.settings, w.core.saved)
    assert any("learnt anew" in sentence for sentence in w.adopt())
    assert w.core.saved.statistics.pooled.count == 0
    w.round("a", "b")
    assert w.adopt() == ()
    assert w.core.saved.statistics.pooled.count == 2


def test_other_changes_and_a_plain_restart_leave_the_norms_as_they_are() -> None:
    w = World("a", "b")
    w.round("a", "b")
    before = w.core.saved.statistics
    w.settings = rules(outer={"lr": 0.1}, penalty={"z_max": 9.0})
    w.core = Fragment(w.settings, w.core.saved)
    assert w.adopt() == ()
    assert w.core.saved.statistics == before


def test_of_replicas_that_have_gone_only_the_newest_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record, "STRANGERS_MAX", 2)
    w = World("a", min_replicas=1)
    w.push("a")
    w.closes(ClosedBy.EVERYONE)
    for name in ("b", "c", "d", "b", "e"):
        incarnation = w.seqs.get(name, 0) + 1
        w.adopt(True, **{name: incarnation})
        w.push(name)
        w.push("a")
        w.closes(ClosedBy.EVERYONE)
        w.adopt(True, **{name: None})
    w.push("a")
    w.closes(ClosedBy.EVERYONE)
    saved = w.core.saved
    assert saved.last.keys() == saved.statistics.replicas.keys() == {"a", "b", "e"}
