"""Who starts together, and who is waited for after coming late."""

from __future__ import annotations

import pytest

from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import ClosedBy
from syncline_testing.world import DEADLINE_S, World

STALE = pb.VERDICT_STALE


def test_the_first_round_alone_waits_for_the_expected_replicas() -> None:
    w = World("a", "b", min_replicas=1, expected_replicas=2)
    w.push("a")
    w.waits()
    w.now_s += DEADLINE_S - 1
    w.waits()
    w.push("b")
    w.closes(ClosedBy.EVERYONE)
    w.push("a")
    w.waits()
    w.adopt(b=None)
    w.closes(ClosedBy.LOSS)
    w.round("a")


@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_the_first_round_does_not_wait_for_who_is_lost_before_it_pushes(warmup_steps: int) -> None:
    w = World("a", "b", min_replicas=1, expected_replicas=2, warmup_steps=warmup_steps)
    _first_push(w, "a")
    w.waits()
    w.adopt(b=None)
    w.closes(ClosedBy.LOSS)


@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_who_is_lost_after_its_first_push_does_not_end_the_wait_for_others(
    warmup_steps: int,
) -> None:
    w = World("a", "b", min_replicas=1, expected_replicas=2, warmup_steps=warmup_steps)
    _first_push(w, "b")
    w.adopt(b=None)
    w.waits()
    _first_push(w, "a")
    w.closes(ClosedBy.EVERYONE)


def test_who_comes_back_before_the_first_round_is_waited_for_again() -> None:
    w = World("a", "b", min_replicas=1, expected_replicas=2)
    w.adopt(b=None)
    w.adopt(b=2)
    w.push("a")
    w.waits()


@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_who_was_refused_at_its_join_does_not_count_as_come(warmup_steps: int) -> None:
    w = World("a", min_replicas=1, expected_replicas=2, warmup_steps=warmup_steps)
    w.refuse(b=1)
    _first_push(w, "a")
    w.refuse(b=None)
    w.waits()
    w.adopt(c=1)
    _first_push(w, "c")
    w.closes(ClosedBy.EVERYONE)


def test_who_was_refused_when_it_came_back_has_come_before() -> None:
    w = World("a", "b", min_replicas=1, expected_replicas=2)
    w.push("a")
    w.refuse(b=2)
    w.waits()
    w.refuse(b=None)
    w.closes(ClosedBy.LOSS)


def _first_push(w: World, replica: str) -> None:
    if w.core.synchronous:
        w.gradient(replica, 1)
    else:
        w.push(replica)


def test_the_first_round_does_not_wait_for_ever() -> None:
    w = World("a", min_replicas=1, expected_replicas=3)
    w.push("a")
    w.now_s += DEADLINE_S
    assert w.closes(ClosedBy.DEADLINE).saved.revision == 1
    w.round("a")


def test_the_synchronous_phase_starts_together_too() -> None:
    w = World("a", "b", min_replicas=1, expected_replicas=2, warmup_steps=2)
    w.gradient("a", 1)
    w.waits()
    w.gradient("b", 1)
    w.closes(ClosedBy.EVERYONE)
    w.gradient("a", 2)
    w.waits()
    w.adopt(b=None)
    w.closes(ClosedBy.LOSS)


def test_who_comes_late_is_waited_for_from_the_next_round_on() -> None:
    w = World("a", "b", min_replicas=1)
    w.round("a")
    assert w.push("b", base=0).verdict == STALE
    w.push("a")
    w.waits()
    assert w.core.expected == ("a", "b")
    w.push("b")
    w.closes(ClosedBy.EVERYONE)


def test_a_round_that_is_open_already_does_not_wait_for_who_comes_late() -> None:
    w = World("a", "b", "c", min_replicas=1, expected_replicas=2)
    w.round("a", "b")
    w.push("a")
    assert w.push("c", base=0).verdict == STALE
    assert w.core.expected == ("a", "b")
    w.push("b")
    w.closes(ClosedBy.EVERYONE)
    w.push("a")
    assert w.core.expected == ("a", "b", "c")
