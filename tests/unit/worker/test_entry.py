"""Entering a run ends for who is asked to leave meanwhile, whoever does not answer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from syncline.entry import Entry
from syncline.ranks import Ranks
from syncline.recall import Recall
from syncline.waiting import TookTooLong
from syncline_proto.errors import CalledOff
from syncline_proto.settings import RunSettings


@pytest.mark.parametrize(("joining", "end"), [(True, CalledOff), (False, TookTooLong)])
def test_who_is_asked_to_leave_waits_for_no_service(joining: bool, end: type[Exception]) -> None:
    """Also where it enters anew, as a synchronous phase has gone on without it."""
    answers, recall = threading.Event(), Recall()
    recall.set()
    exchange: Any = SimpleNamespace(states=lambda: answers.wait(20), begin_pull=None)
    helm: Any = SimpleNamespace(joining=joining, recall=recall)
    joined: Any = SimpleNamespace(initialised=frozenset(), settings=RunSettings())
    rounds: Any = SimpleNamespace(fragments=range(0))
    other: Any = None
    entry = Entry(joined, Ranks(), other, exchange, helm, rounds, other, other)
    try:
        with pytest.raises(end):
            entry.take()
    finally:
        answers.set()
