"""One word when a service stays away, one when it is back; who answers anything is there."""

from __future__ import annotations

from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from syncline import outage
from syncline.outage import Outage
from syncline_proto.errors import (
    LeaseLost,
    Overloaded,
    RevisionGone,
    RunUnknown,
    SynclineError,
    Unreachable,
)
from syncline_testing.clock import Clock, set_by_hand

AWAY = Unreachable("Nobody answers.")
WHERE = "127.0.0.1:50051"
BUSY = Overloaded("There is no room.")


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return set_by_hand(monkeypatch, outage)


def call(outage: Outage, error: SynclineError | None = None) -> None:
    with suppress(SynclineError), outage.noted():
        if error is not None:
            raise error


def test_it_is_said_once_and_so_is_the_return(at: Clock) -> None:
    service = Outage("sync", "waiting", lambda: WHERE)
    with capture_logs() as logs:
        for second in range(10):
            at(second)
            call(service, AWAY)
        assert service.is_on
        call(service)
        call(service)
    assert [{k: v for k, v in log.items() if k != "log_level"} for log in logs] == [
        {"event": "sync.away", "why": "Nobody answers.", "so": "waiting"},
        {"event": "sync.back", "at": WHERE},
    ]
    assert not service.is_on


def test_a_short_absence_is_not_worth_a_word(at: Clock) -> None:
    service = Outage("sync", "waiting", lambda: WHERE)
    with capture_logs() as logs:
        for second in range(0, 100, 2):
            at(second)
            call(service, AWAY if second % 4 else None)
    assert not logs


@pytest.mark.parametrize("kind", [Overloaded, RevisionGone, LeaseLost, RunUnknown])
def test_a_refusal_is_an_answer(kind: type[SynclineError], at: Clock) -> None:
    service = Outage("sync", "waiting", lambda: WHERE)
    with capture_logs() as logs:
        call(service, AWAY)
        call(service, kind("no"))
        at(60)
        call(service, AWAY)
        assert not logs, "the second absence is new"
        at(70)
        call(service, AWAY)
        call(service, kind("no"))
    assert [log["event"] for log in logs] == ["sync.away", "sync.back"]
