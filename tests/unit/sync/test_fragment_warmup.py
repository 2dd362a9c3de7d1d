"""The synchronous phase of a fragment: gradient steps, who may come late, and how it ends."""

from __future__ import annotations

import math

import pytest

from syncline_proto.errors import InvalidRequest
from syncline_proto.ranges import Range
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.ending import Ending
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import ClosedBy, Kind
from syncline_testing.phases import STEPS, Phase
from syncline_testing.pure import whole_push
from syncline_testing.spread import spread

ACCEPTED, STALE = pb.VERDICT_ACCEPTED, pb.VERDICT_STALE


def test_gradients_are_weighted_by_tokens_and_count_steps_not_revisions() -> None:
    w = Phase("a", "b")
    assert w.gradient("a", 1, tokens=30).weight == 30.0
    assert w.gradient("b", 1, tokens=10).weight == 10.0
    closing = w.close()
    assert (closing.kind, closing.total_weight) == (Kind.GRADIENT, 40.0)
    assert [c.weight for c in closing.saved.contributions] == [0.75, 0.25]
    saved = closing.saved
    assert (saved.revision, saved.gradient_step, saved.committed_tokens) == (0, 1, 40)
    assert saved.statistics.pooled.count == 0, "gradients are not pseudo-gradients"


def test_a_gradient_that_is_not_finite_counts_for_nothing() -> None:
    w = Phase("a", "b", "c")
    assert w.gradient("a", 1, norm=math.nan).verdict == pb.VERDICT_ANOMALOUS
    huge = w.gradient("c", 1, norm=1e30)
    assert huge.verdict == pb.VERDICT_ANOMALOUS
    assert "its norm 1e+30 is over 1e+20" in huge.reason
    w.gradient("b", 1)
    assert w.close().total_weight == 1.0


def test_a_late_gradient_is_stale_and_names_its_step() -> None:
    w = Phase("a", "b", "c")
    w.step(1, "a", "b")
    late = w.gradient("c", 1)
    assert (late.verdict, late.result) == (STALE, 1)
    assert w.gradient("c", 2).verdict == ACCEPTED, "it has the mean of step 1, so it goes on"


@pytest.mark.parametrize("step", [3, STEPS + 1, 1000])
def test_a_gradient_from_the_future_is_refused(step: int) -> None:
    w = Phase("a", "b")
    w.step(1, "a", "b")
    with pytest.raises(InvalidRequest, match="gradient_step"):
        w.gradient("a", step)


def test_no_step_follows_the_last_one() -> None:
    """Or its open round would stand in the way of the parameters."""
    w = Phase("a", "b")
    for step in range(1, STEPS + 1):
        w.step(step, "a", "b")
    with pytest.raises(InvalidRequest, match="PARAMETERS"):
        w.gradient("a", STEPS + 1)
    assert w.offer("b", 0).sets


def test_the_first_offer_after_the_last_step_becomes_revision_1() -> None:
    w = Phase("a", "b")
    with pytest.raises(InvalidRequest, match="step 0 of 3"):
        w.offer("a", 0)
    for step in range(1, STEPS + 1):
        w.step(step, "a", "b")
    assert w.offer("b", 0).result == 1
    second = w.offer("a", 0)
    assert (second.verdict, second.sets) == (STALE, False)
    closing = w.close()
    assert (closing.kind, closing.closed_by) == (Kind.PARAMETERS, ClosedBy.OFFER)
    assert closing.saved.revision == 1
    assert closing.saved.committed_tokens == 2 * STEPS
    assert not w.core.synchronous
    assert (w.offer("a", 0).verdict, w.gradient("a", 1).verdict) == (STALE, STALE)
    assert w.push("a", base=1).verdict == ACCEPTED
    assert w.core.expected == ("a", "b")


def test_only_what_outer_steps_make_is_ever_written_behind() -> None:
    """What a run begins with has nothing before it to go back to."""
    w = Phase("a", "b", durability="async")
    steps = [w.step(step, "a", "b") for step in range(1, STEPS + 1)]
    w.offer("b", 0)
    offered = w.close()
    assert [closing.behind for closing in (w.first, *steps, offered)] == [False] * (STEPS + 2)
    for replica in ("a", "b"):
        w.push(replica, base=1)
    assert w.close().behind


def test_a_pseudo_gradient_in_the_phase_is_told_to_wait_for_revision_1() -> None:
    w = Phase("a", "b")
    early = w.push("a", base=0)
    assert (early.verdict, early.result) == (STALE, 1)


def test_whoever_is_left_finishes_the_phase_alone() -> None:
    """Nobody can join it, so waiting for ``min_replicas`` would never end."""
    w = Phase("a", "b")
    w.step(1, "a", "b")
    w.gradient("a", 2)
    assert w.core.due(0.0) is None
    w.adopt(b=2)  # b comes back, and waits for revision 1
    assert w.close().closed_by == ClosedBy.LOSS
    w.step(3, "a")
    assert w.offer("a", 0).sets
    w.close()
    w.push("a", base=1)
    assert w.core.due(0.0) is None, "from now on the minimum is the minimum"
    assert w.push("b", base=1).verdict == ACCEPTED
    assert w.core.due(0.0) == ClosedBy.EVERYONE


def test_the_first_step_waits_for_the_minimum() -> None:
    w = Phase("a", "b")
    w.gradient("a", 1)
    assert w.core.due(0.0) is None
    w.adopt(b=None)
    assert w.core.due(0.0) is None


def test_the_phase_starts_again_when_everyone_in_it_is_gone() -> None:
    w = Phase("a", "b")
    w.step(1, "a", "b")
    w.gradient("a", 2)
    assert w.adopt(a=None) == ()
    told = w.adopt(b=2, a=2)
    assert told and "starts again" in told[0]
    assert (w.core.saved.gradient_step, w.core.arrived) == (0, ())
    w.seqs.clear()
    w.step(1, "a", "b")
    assert w.core.saved.gradient_step == 1


def test_what_was_trained_in_a_phase_that_is_lost_is_nobodys_any_more() -> None:
    """Its parameters are gone: neither a budget nor the data may count it."""
    w = Phase("a", "b", min_replicas=1)
    w.gradient("a", 1, tokens=5, data=(Range(0, 0, 8),))
    w.gradient("b", 1, tokens=5, data=(Range(0, 8, 16),), norm=math.nan)
    assert w.close().saved.committed_tokens == 5
    assert (w.core.saved.trained, w.core.saved.excluded) != ((), ())
    w.adopt(a=2, b=2)
    assert w.core.saved.committed_tokens == 0
    assert (w.core.saved.trained, w.core.saved.excluded) == ((), ())
    w.seqs.clear()
    w.gradient("a", 1, tokens=7, data=(Range(0, 0, 8),))
    w.gradient("b", 1, tokens=7, data=(Range(0, 8, 16),))
    saved = w.close().saved
    assert (saved.committed_tokens, spread(saved.trained)) == (14, (Range(0, 0, 16),))


def test_who_has_followed_into_the_open_step_keeps_the_phase_alive() -> None:
    """Its push is in; if the phase started again it would wait for the answer for ever."""
    w = Phase("a", "b", "c")
    w.step(1, "a", "b")
    assert w.gradient("c", 2).verdict == ACCEPTED
    assert w.adopt(a=None, b=None) == ()
    assert w.close().saved.gradient_step == 2
    w.step(3, "c")


def two_fragments() -> tuple[Phase, Phase]:
    """Two fragments of one run at the end of their phase; nothing is offered yet."""
    ending = Ending(range(2))
    one, other = (Phase("a", "b", number=number, ending=ending) for number in (0, 1))
    for step in range(1, STEPS + 1):
        for w in (one, other):
            w.step(step, "a", "b")
    return one, other


def test_an_offer_waits_for_those_of_the_other_fragments() -> None:
    one, other = two_fragments()
    assert one.offer("a", 0).verdict == ACCEPTED
    assert one.core.due(1e9) is None
    waiting = one.offer("b", 0)
    assert (waiting.verdict, waiting.result) == (STALE, 1)
    one.adopt(a=None)
    assert other.offer("b", 0).verdict == ACCEPTED
    assert (one.close().saved.revision, other.close().saved.revision) == (1, 1)


def test_if_everyone_goes_before_the_last_offer_every_fragment_starts_again() -> None:
    one, other = two_fragments()
    one.offer("a", 0)
    for w in (one, other):
        assert "starts again" in w.adopt(a=2, b=2)[0]
        assert (w.core.saved.gradient_step, w.core.arrived) == (0, ())
        w.seqs.clear()
    for step in range(1, STEPS + 1):
        for w in (one, other):
            w.step(step, "a", "b")
    other.offer("b", 0)
    assert other.core.due(0.0) is None, "the offer that was withdrawn does not count"
    one.offer("b", 0)
    assert (one.close().saved.revision, other.close().saved.revision) == (1, 1)


def test_once_the_last_offer_is_in_nobody_is_needed_any_more() -> None:
    one, other = two_fragments()
    one.offer("a", 0)
    other.offer("a", 0)
    for w in (one, other):
        assert w.adopt(a=None, b=None) == ()
        assert w.close().saved.revision == 1


def test_a_fragment_that_was_committed_before_a_restart_is_not_waited_for() -> None:
    one, other = two_fragments()
    one.offer("a", 0)
    other.offer("a", 0)
    committed = one.close().saved
    ending = Ending(range(2))
    Fragment(one.settings, committed, number=0, ending=ending)
    again = Fragment(other.settings, other.core.saved, number=1, ending=ending)
    again.adopt(0.0, other.members, other.settings, True)
    assert again.due(0.0) is None
    again.judge(0.0, whole_push("a", seq=9, kind=Kind.PARAMETERS, base=0))
    assert again.due(0.0) is None, "it is not stored yet"
    again.keep_offer()
    assert again.due(0.0) == ClosedBy.OFFER


def test_an_offer_that_was_stored_is_still_there_after_a_restart() -> None:
    one, other = two_fragments()
    one.offer("a", 0)
    ending = Ending(range(2))
    again = [
        Fragment(w.settings, w.core.saved, number=number, ending=ending, offer=offer)
        for number, (w, offer) in enumerate([(one, one.stored), (other, None)])
    ]
    for core in again:
        core.adopt(0.0, one.members, one.settings, True)
    assert again[0].arrived == ("a",)
    assert (
        again[0].judge(0.0, whole_push("b", seq=9, kind=Kind.PARAMETERS, base=0)).verdict == STALE
    )
    again[1].judge(0.0, whole_push("a", seq=9, kind=Kind.PARAMETERS, base=0))
    again[1].keep_offer()
    assert [core.close(ClosedBy.OFFER).saved.revision for core in again] == [1, 1]


def test_an_offer_of_a_phase_that_was_given_up_is_passed_over() -> None:
    one, other = two_fragments()
    one.offer("a", 0)
    for w in (one, other):
        w.adopt(a=2, b=2)
        w.seqs.clear()
        w.step(1, "a", "b")
    ending = Ending(range(2), phase=one.core.saved.phase)
    again = Fragment(one.settings, one.core.saved, number=0, ending=ending, offer=one.stored)
    again.adopt(0.0, one.members, one.settings, True)
    assert again.arrived == () and again.saved.gradient_step == 1
