"""Rank 0's stock of leased data: asked for ahead, without anybody waiting for who is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from syncline import leases
from syncline.control import ControlClient
from syncline.core.supply import Supply
from syncline.leases import Leases
from syncline_proto.errors import (
    DataMismatch,
    LeaseLost,
    Overloaded,
    SynclineError,
    Unreachable,
)
from syncline_proto.leased import DataAsk, DataGrant, Dataset
from syncline_proto.ranges import NOTHING, Range, Ranges, count
from syncline_testing.views import registration
from syncline_testing.waiting import wait_until

SUPPLY = Supply(least=10, most=10)


class Control:
    """A control plane's ledger for one replica; ``fails`` stands before every answer."""

    def __init__(self) -> None:
        self.asked: list[DataAsk] = []
        self.fails: Callable[[], None] = lambda: None
        self.next = 0
        self.grants: list[Range] = []
        self.is_heard = True
        self.is_dry = False
        self.closed = False

    def lease_data(self, _run: str, _replica: str, body: DataAsk) -> DataGrant:
        self.fails()
        self.asked.append(body)
        again = self.grants[body.after :]
        if not again and body.want and not self.is_dry:
            again = [Range(0, self.next, self.next + body.want)]
            self.grants += again
            self.next += body.want
        if not self.is_heard:
            self.is_heard = True
            raise Unreachable("The answer is lost.")
        return DataGrant(number=len(self.grants), ranges=again)

    def close(self) -> None:
        self.closed = True


def always(error: SynclineError) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@contextmanager
def stock(control: Control, unread: Ranges | None = NOTHING) -> Iterator[Leases]:
    client = cast(ControlClient, cast(Any, control))
    dataset = Dataset(sequences=1000, seed=0)
    made = Leases(client, registration("one"), dataset, SUPPLY)
    try:
        yield made
    finally:
        made.close(unread)
    assert control.closed
    assert not [one for one in threading.enumerate() if one.name == "syncline-data"]


def test_it_is_filled_ahead_and_again_once_it_is_taken() -> None:
    control = Control()
    with stock(control) as leased:
        assert leased.take(4, 20.0) == (Range(0, 0, 10),)
        assert leased.take(1, 20.0) == (Range(0, 10, 20),)
        wait_until(lambda: control.next == 30, 20, "there is some again")


def test_what_nobody_read_is_given_back_and_of_a_lost_lease_nothing() -> None:
    control = Control()
    with stock(control, unread=(Range(0, 3, 10),)) as leased:
        leased.take(1, 20.0)
        wait_until(lambda: control.next == 20, 20, "the stock is full")
    assert control.asked[-1].returned == [Range(0, 3, 20)]
    gone = Control()
    with stock(gone, unread=None) as leased:
        leased.take(1, 20.0)
    assert not any(ask.returned for ask in gone.asked)


def test_an_answer_that_was_lost_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RETRY_S", 0.01)
    control = Control()
    control.is_heard = False
    with stock(control) as leased:
        taken: list[Range] = []
        wait_until(lambda: bool(taken.extend(leased.take(1, 0.1)) or taken), 20, "it is heard")
        assert taken[0] == Range(0, 0, 10)


def test_nobody_waits_for_who_is_away_and_it_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "RETRY_S", 0.01)
    control = Control()
    control.fails = always(Unreachable("It is away."))
    with stock(control) as leased:
        assert leased.take(1, 600.0) == NOTHING
        control.fails = lambda: None
        wait_until(lambda: count(leased.take(1, 0.1)) > 0, 20, "it is back")


def test_who_asks_for_patience_is_waited_for_though_it_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a control plane that has just started, and hears first what is done."""
    monkeypatch.setattr(leases, "RETRY_S", 0.01)
    control, asked = Control(), list[int]()

    def patience() -> None:
        asked.append(1)
        if len(asked) < 50:
            raise Overloaded("Ask again in a second.")

    control.fails = always(Unreachable("It is away."))
    with stock(control) as leased:
        assert leased.take(1, 600.0) == NOTHING
        control.fails = patience
        wait_until(lambda: len(asked) > 1, 20, "it has said so")
        assert count(leased.take(1, 600.0)) > 0


def test_nobody_waits_for_more_than_a_replica_may_hold_and_it_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "RETRY_S", 0.01)
    control = Control()
    control.is_dry = True
    with stock(control) as leased:
        assert leased.take(1, 600.0) == NOTHING
        control.is_dry = False
        wait_until(lambda: count(leased.take(1, 0.1)) > 0, 20, "some is done")
    dry = Control()
    dry.is_dry = True
    monkeypatch.setattr(leases, "RETRY_S", 600.0)
    with stock(dry) as leased:
        assert leased.take(1, 600.0) == NOTHING
        assert len(dry.asked) == 1, "nor is it asked without a pause"


def test_other_data_is_told_to_who_reads() -> None:
    control = Control()
    control.fails = always(DataMismatch("The data is another."))
    with stock(control) as leased, pytest.raises(DataMismatch, match="another"):
        leased.take(1, 600.0)


def test_a_lost_lease_leaves_its_word_to_the_heartbeat() -> None:
    control = Control()
    control.fails = always(LeaseLost("It ran out."))
    with stock(control, unread=None) as leased:
        assert leased.take(1, 600.0) == NOTHING


def test_a_fault_of_its_thread_is_raised_where_it_is_read() -> None:
    """Not an end of the data: training would go on with what nobody counts."""
    control, fault = Control(), RuntimeError("a bug")

    def fail() -> None:
        if control.asked:
            raise fault

    control.fails = fail
    with capture_logs(), stock(control) as leased:
        leased.take(1, 20.0)
        with pytest.raises(RuntimeError) as raised:
            leased.take(1, 20.0)
        assert raised.value is fault
