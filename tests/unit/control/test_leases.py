"""Leases: incarnations grow, what ran out stays lost, and nobody pays for our absence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from syncline_control.core import leases
from syncline_control.core.leases import Lease
from syncline_proto.errors import LeaseLost, RunConflict
from syncline_proto.rest import ReplicaState

LENGTH_S = 4


def fresh(now: float = 0.0) -> Lease:
    return leases.grant(None, now, LENGTH_S)


@pytest.mark.parametrize(("now", "held"), [(LENGTH_S - 1, True), (LENGTH_S, False)])
def test_a_lease_is_held_before_its_end_and_lost_at_it(now: int, held: bool) -> None:
    assert leases.review(fresh(), now).held is held
    if held:
        assert leases.renew(fresh(), 1, now).until == now + LENGTH_S
    else:
        with pytest.raises(LeaseLost, match="no heartbeat"):
            leases.renew(fresh(), 1, now)


@pytest.mark.parametrize(("late_s", "held"), [(LENGTH_S / 2, False), (LENGTH_S / 2 + 1, True)])
def test_only_being_late_by_more_than_half_a_lease_extends(late_s: float, held: bool) -> None:
    reviewed = leases.review(fresh(), 100.0, late_s)
    assert reviewed.held is held
    if held:
        assert reviewed.until == 100.0 + LENGTH_S
        assert leases.renew(fresh(), 1, 100.0, late_s).held


def test_a_clock_that_was_set_back_keeps_nobody_alive() -> None:
    assert leases.review(fresh(now=1000.0), 10.0).until == 10.0 + LENGTH_S


def test_an_older_life_is_told_who_fences_it() -> None:
    second = leases.grant(fresh(), 1.0, LENGTH_S)
    with pytest.raises(LeaseLost) as told:
        leases.renew(second, 1, 2.0)
    assert told.value.message == (
        "Another process has joined under the same replica's name and goes on in its place "
        "(incarnation 2, this one is 1); where both are to train, give each a name of its own "
        "(--replica, SYNCLINE_REPLICA, Replica(name=...))."
    )


def test_a_life_that_was_never_given_is_refused() -> None:
    with pytest.raises(LeaseLost, match="never given"):
        leases.renew(fresh(), 2, 1.0)


@pytest.mark.parametrize("state", [ReplicaState.LEFT, ReplicaState.LOST, ReplicaState.KICKED])
def test_what_has_ended_is_neither_renewed_nor_drained_nor_kicked(state: ReplicaState) -> None:
    ended = replace(fresh(), state=state)
    with pytest.raises(LeaseLost):
        leases.renew(ended, 1, 1.0)
    with pytest.raises(LeaseLost if state is ReplicaState.KICKED else RunConflict):
        leases.drain(ended)
    assert leases.kick(ended, 2.0) == leases.review(ended, 99.0) == ended
    assert ended.left_s(0.0) == 0.0


@pytest.mark.parametrize("state", [ReplicaState.LEFT, ReplicaState.LOST])
def test_leaving_again_changes_nothing(state: ReplicaState) -> None:
    ended = replace(fresh(), state=state)
    assert leases.release(ended, 1, 2.0) == ended


def test_who_was_kicked_hears_one_sentence_whatever_it_asks_for() -> None:
    kicked = leases.kick(fresh(), 1.0)
    heard: set[str] = set()
    for ask in (
        lambda: leases.grant(kicked, 2.0, LENGTH_S),
        lambda: leases.renew(kicked, 1, 2.0),
        lambda: leases.renew(kicked, 0, 2.0),
        lambda: leases.renew(kicked, 2, 2.0),
        lambda: leases.drain(kicked),
        lambda: leases.release(kicked, 1, 2.0),
    ):
        with pytest.raises(LeaseLost) as refused:
            ask()
        heard.add(refused.value.message)
    assert len(heard) == 1


def test_a_lease_that_was_given_back_or_taken_ends_there() -> None:
    assert leases.release(fresh(), 1, 1.0).until == leases.kick(fresh(), 1.0).until == 1.0


def test_a_draining_replica_goes_on_renewing() -> None:
    draining = leases.drain(fresh())
    assert leases.renew(draining, 1, 1.0).state is ReplicaState.DRAINING
    assert leases.drain(draining) == draining


@given(st.lists(st.floats(0.5, 3600), max_size=5))
def test_leases_are_reviewed_often_enough_and_not_too_often(lengths_s: list[float]) -> None:
    every_s = leases.review_every_s(lengths_s)
    assert leases.REVIEW_S_MIN <= every_s <= leases.REVIEW_S_MAX
    assert all(every_s <= max(length_s / 10, leases.REVIEW_S_MIN) for length_s in lengths_s)


class LeaseHistory(RuleBasedStateMachine):
    """One replica name under any history, beside a twin that only counts seconds of silence."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.lease: Lease | None = None
        self.given: list[int] = []
        self.silent_s = 0
        self.ended = False
        self.kicked = False

    @rule(seconds=st.integers(0, LENGTH_S + 1))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.silent_s += seconds

    @precondition(lambda self: not self.kicked)
    @rule()
    def register(self) -> None:
        self.lease = leases.grant(self.lease, self.now, LENGTH_S)
        self.given.append(self.lease.incarnation)
        self.silent_s, self.ended = 0, False

    @precondition(lambda self: self.lease is not None)
    @rule(back=st.integers(0, 2))
    def heartbeat(self, back: int) -> None:
        assert self.lease is not None
        may = back == 0 and not self.ended and self.silent_s < LENGTH_S
        try:
            self.lease = leases.renew(self.lease, self.lease.incarnation - back, self.now)
        except LeaseLost:
            assert not may
        else:
            assert may
            self.silent_s = 0

    @precondition(lambda self: self.lease is not None)
    @rule()
    def review(self) -> None:
        assert self.lease is not None
        self.lease = leases.review(self.lease, self.now)
        self.ended = self.ended or self.silent_s >= LENGTH_S
        assert self.lease.held is not self.ended

    @precondition(lambda self: self.lease is not None)
    @rule(back=st.integers(0, 1), kicked=st.booleans())
    def end(self, back: int, kicked: bool) -> None:
        assert self.lease is not None
        if kicked:
            self.kicked = self.kicked or self.lease.held
            self.lease = leases.kick(self.lease, self.now)
        elif not self.kicked:
            self.lease = leases.release(self.lease, self.lease.incarnation - back, self.now)
        self.ended = self.ended or kicked or back == 0

    @invariant()
    def incarnations_grow_and_ended_means_not_held(self) -> None:
        assert self.given == list(range(1, len(self.given) + 1))
        if self.lease is not None and self.ended:
            assert not self.lease.held
            assert self.lease.left_s(self.now) == 0


def test_any_history_keeps_the_invariants() -> None:
    run_state_machine_as_test(
        LeaseHistory, settings=settings(max_examples=150, stateful_step_count=30, deadline=None)
    )
