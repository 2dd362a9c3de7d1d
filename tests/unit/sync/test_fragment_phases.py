"""Who follows a synchronous phase without counting in it, and what is left of one that was lost."""

from __future__ import annotations

import pytest

from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.phases import STEPS, Phase

ACCEPTED, STALE = pb.VERDICT_ACCEPTED, pb.VERDICT_STALE


def lost(*, step: int = 2) -> Phase:
    """The phase began anew while c, whom nobody had waited for, was under way."""
    w = Phase("a", "b", "c")
    for number in range(1, step + 1):
        w.step(number, "a", "b")
    w.adopt(a=2, b=2)
    w.seqs = {"c": w.seqs.get("c", 0)}
    assert (w.core.saved.phase, w.core.saved.gradient_step) == (1, 0)
    return w


def test_who_comes_late_for_a_step_is_waited_for_in_the_next() -> None:
    w = Phase("a", "b", "c")
    w.step(1, "a", "b")
    assert w.gradient("c", 1).verdict == STALE, "it takes the mean and goes on"
    for replica in ("a", "b"):
        w.gradient(replica, 2)
    assert w.core.expected == ("a", "b", "c") and w.core.due(0.0) is None
    w.gradient("c", 2)
    assert len(w.close().saved.contributions) == 3


def test_a_join_delays_no_step_that_is_open() -> None:
    w = Phase("a", "b", "c")
    w.step(1, "a", "b")
    w.gradient("a", 2)
    assert w.gradient("c", 1).verdict == STALE
    w.gradient("b", 2)
    assert w.core.expected == ("a", "b")
    w.close()
    assert w.gradient("c", 2).verdict == STALE
    w.gradient("a", 3)
    assert w.core.expected == ("a", "b", "c")


def test_who_missed_a_step_is_not_waited_for_in_the_next() -> None:
    w = Phase("a", "b", "c", min_replicas=2)
    w.step(1, "a", "b")
    w.gradient("c", 1)
    w.gradient("a", 2)
    w.gradient("b", 2)
    assert w.core.expected == ("a", "b", "c")
    closed_by = w.core.due(w.settings.timeouts.round_deadline_s)
    assert closed_by is not None
    w.core.close(closed_by)
    w.step(3, "a", "b")


def test_a_phase_is_lost_where_a_step_closes_without_anybody_who_is_alive() -> None:
    """Those whom it waited for may have left the phase, and joiners wait for its end."""
    w = Phase("a", "b", min_replicas=1)
    w.step(1, "a", "b")
    w.gradient("a", 2)
    w.adopt(a=None)
    assert w.core.expected == ("b",) and not w.core.is_deserted
    closed_by = w.core.due(w.settings.timeouts.round_deadline_s)
    assert closed_by is not None
    w.core.close(closed_by)
    assert w.core.is_deserted
    w.adopt()
    assert (w.core.saved.phase, w.core.saved.gradient_step) == (1, 0)
    assert not w.core.is_deserted


def test_whose_mean_is_gone_is_not_waited_for() -> None:
    w = Phase("a", "b", "c", warmup_steps=4)
    for number in (1, 2, 3):
        w.step(number, "a", "b")
    assert w.gradient("c", 1).verdict == STALE
    w.step(4, "a", "b")


def test_whose_mean_goes_with_the_step_that_is_open_is_not_waited_for() -> None:
    w = Phase("a", "b", "c", warmup_steps=4)
    for number in (1, 2):
        w.step(number, "a", "b")
    w.gradient("a", 3)
    assert w.gradient("c", 1).verdict == STALE, "its mean is there, and gone once b has pushed"
    w.gradient("b", 3)
    w.close()
    w.step(4, "a", "b")


def test_who_follows_a_phase_keeps_it_alive() -> None:
    w = Phase("a", "b", "c", min_replicas=1)
    w.step(1, "a", "b")
    assert w.gradient("c", 1).verdict == STALE
    w.adopt(a=None, b=None)
    assert (w.core.saved.phase, w.core.saved.gradient_step) == (0, 1)
    w.step(2, "c")


def test_a_gradient_of_a_phase_that_was_lost_is_stale() -> None:
    w = lost()
    late = w.gradient("c", 3, phase=0)
    assert (late.verdict, late.result) == (STALE, 3)
    assert late.reason == "the synchronous phase is number 1, not 0."
    w.step(1, "a", "b")
    assert w.gradient("c", 2, phase=0).verdict == STALE, "though step 2 is next in this phase, too"
    assert w.core.expected == () and not w.core.is_open
    for replica in ("a", "b"):
        assert w.gradient(replica, 2, phase=1).verdict == ACCEPTED
    assert w.core.expected == ("a", "b"), "c is not in it"


def test_where_no_phase_is_named_a_step_out_of_order_tells_that_it_was_lost() -> None:
    assert lost().gradient("c", 3).verdict == STALE
    first = Phase("a", "b")
    first.step(1, "a", "b")
    with pytest.raises(InvalidRequest, match="gradient_step: 3 where 2 is next"):
        first.gradient("a", 3)
    with pytest.raises(InvalidRequest, match="gradient_step: 3 where 1 is next"):
        lost().gradient("c", 3, phase=1)


def test_an_offer_of_a_phase_that_was_lost_is_stale() -> None:
    w = lost(step=STEPS)
    late = w.offer("c", 0, phase=0)
    assert (late.verdict, late.result) == (STALE, 1)
    with pytest.raises(InvalidRequest, match="at step 0 of 3"):
        w.offer("a", 0, phase=1)
    for number in range(1, STEPS + 1):
        w.step(number, "a", "b")
    assert w.offer("c", 0, phase=0).verdict == STALE
    assert w.offer("a", 0, phase=1).verdict == ACCEPTED
