"""Waits end: with an answer, with a limit, or when they are told to; a pause costs no patience."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from syncline import patience
from syncline.patience import Pauses, RoundPatience, patiently
from syncline_proto.errors import Overloaded, RunConflict, Unreachable
from syncline_proto.settings import TimeoutSettings
from syncline_testing.clock import Clock, set_by_hand

TIMEOUTS = TimeoutSettings(lease=1.0, round_deadline=10.0)
LIMIT_S = 2 * 10.0 + TIMEOUTS.give_up_s


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return set_by_hand(monkeypatch, patience)


def test_a_round_that_does_not_close_is_given_up(at: Clock) -> None:
    waiting = RoundPatience(TIMEOUTS, lambda: 0.0)
    at(LIMIT_S)
    waiting.check("head")
    at(LIMIT_S + 1)
    with pytest.raises(Unreachable, match=f"The round of head has not closed for {LIMIT_S:g} s"):
        waiting.check("head")


def test_a_pause_costs_no_patience_and_a_move_gives_it_back(at: Clock) -> None:
    pauses = Pauses()
    pauses.set(True)
    waiting = RoundPatience(TIMEOUTS, lambda: pauses.seconds)
    at(10 * LIMIT_S)
    waiting.check("head")
    pauses.set(False)
    at(11 * LIMIT_S - 1)
    waiting.check("head")
    waiting.start_again()
    at(12 * LIMIT_S - 2)
    waiting.check("head")


def test_between_two_looks_only_the_pauses_themselves_are_free(at: Clock) -> None:
    pauses = Pauses()
    waiting = RoundPatience(TIMEOUTS, lambda: pauses.seconds)
    for second, is_on in ((1, True), (2, True), (9 * LIMIT_S + 1, False), (10 * LIMIT_S, True)):
        at(second)
        pauses.set(is_on)
    assert pauses.seconds == 9 * LIMIT_S
    at(20 * LIMIT_S)
    waiting.check("head")  # LIMIT_S of it was no pause
    pauses.set(False)
    at(20 * LIMIT_S + 1)
    pauses.set(True)
    with pytest.raises(Unreachable):
        waiting.check("head")


def test_who_is_asked_may_be_away_for_a_while() -> None:
    answers: Iterator[Exception | None] = iter([Unreachable("away"), Overloaded("full"), None])

    def ask() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "here"

    assert patiently(ask, 60.0, threading.Event()) == "here"


def test_a_refusal_is_not_asked_again() -> None:
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        raise RunConflict("ended")

    with pytest.raises(RunConflict):
        patiently(ask, 60.0, threading.Event())
    assert len(asked) == 1


def test_the_last_answer_comes_out_when_time_is_up_or_nobody_waits() -> None:
    def ask() -> None:
        raise Unreachable("away")

    stop = threading.Event()
    with pytest.raises(Unreachable, match="away"):
        patiently(ask, 0.0, stop)
    stop.set()
    with pytest.raises(Unreachable, match="away"):
        patiently(ask, 1e9, stop)
