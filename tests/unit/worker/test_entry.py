"""Entering a run ends for who is asked to leave meanwhile, whoever does not answer."""

from __future__ import annotations

import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from syncline.entry import Entry
from syncline.helm import Helm
from syncline.ranks import Ranks
from syncline.recall import OPERATOR, Recall
from syncline.waiting import TookTooLong
from syncline_proto.errors import CalledOff
from syncline_proto.settings import RunSettings


class Silent:
    """An exchange whose services do not answer."""

    def __init__(self) -> None:
        self._answers = threading.Event()
        self.begin_pull = None

    def states(self) -> bool:
        return self._answers.wait(20)

    def close(self) -> None:
        self._answers.set()


def entry_of(exchange: Any, helm: Any) -> Entry:
    joined: Any = SimpleNamespace(initialised=frozenset(), settings=RunSettings())
    rounds: Any = SimpleNamespace(fragments=range(0))
    other: Any = None
    return Entry(joined, Ranks(), other, exchange, helm, rounds, other, other)


def helm_of(recall: Recall, *, drain: bool = False) -> Helm:
    pulse: Any = SimpleNamespace(news=SimpleNamespace(drain=drain))
    other: Any = None
    return Helm(Ranks(), "run", None, pulse, recall, 1.0, other)


@pytest.mark.parametrize(("joining", "end"), [(True, CalledOff), (False, TookTooLong)])
def test_who_is_asked_to_leave_waits_for_no_service(joining: bool, end: type[Exception]) -> None:
    """Also where it enters anew, as a synchronous phase has gone on without it."""
    recall = Recall()
    recall.set()
    helm = helm_of(recall)
    helm.joining = joining
    with closing(Silent()) as exchange, pytest.raises(end):
        entry_of(exchange, helm).take()


def test_an_operator_is_heard_too_where_a_replica_enters_anew() -> None:
    recall = Recall()
    helm = helm_of(recall, drain=True)
    helm.joining = False
    with closing(Silent()) as exchange, pytest.raises(TookTooLong):
        entry_of(exchange, helm).take()
    assert recall.asker == OPERATOR
