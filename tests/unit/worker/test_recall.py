"""Who is called off waits for nobody, and hears an answer that is there already."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from syncline.ranks import Ranks
from syncline.recall import OTHER, OWN, Recall, unless_recalled
from syncline_proto.errors import CalledOff, RunConflict, Unreachable
from syncline_testing.two_ranks import two_ranks

IN_TWO = """
import threading
from syncline.recall import Recall, unless_recalled
from syncline_proto.errors import CalledOff

recall, answers = Recall(), threading.Event()
print(unless_recalled(lambda: {"made": rank}, recall, ranks))
if rank == 1:
    threading.Timer(0.2, recall.set).start()
try:
    unless_recalled(lambda: answers.wait(20), recall, ranks)
except CalledOff:
    print(recall.asker)
"""

FULL = """
import threading
from syncline import join
from syncline.control import ControlClient
from syncline.recall import Recall
from syncline.wish import wished
from syncline_proto.errors import CalledOff, RunFull
from syncline_proto.settings import TimeoutSettings

def full(*_):
    raise RunFull("It has as many as it may have.")

ControlClient.register, join.PLACE_S, recall = full, 1e6, Recall()
wish = wished("http://127.0.0.1:1", "run", "one", None, {}, lambda run, job: None)
if rank == 1:
    threading.Timer(0.5, recall.set).start()
try:
    join.register(wish, ranks, TimeoutSettings(), "a model", recall)
except CalledOff:
    print(recall.asker)
"""


def test_a_wait_ends_when_it_is_recalled() -> None:
    recall, answers = Recall(), threading.Event()
    threading.Timer(0.2, recall.set).start()
    try:
        with pytest.raises(CalledOff, match="asked to leave"):
            unless_recalled(lambda: answers.wait(60), recall, Ranks())
    finally:
        answers.set()


def test_an_answer_counts_even_if_it_is_recalled_meanwhile() -> None:
    recall = Recall()
    recall.set()
    assert unless_recalled(lambda: "a lease", recall, Ranks()) == "a lease"


def test_of_what_failed_meanwhile_only_waiting_is_called_off() -> None:
    recall = Recall()

    def fail(error: Exception) -> None:
        recall.set()
        raise error

    with pytest.raises(RunConflict):
        unless_recalled(lambda: fail(RunConflict("ended")), recall, Ranks())
    with pytest.raises(CalledOff):
        unless_recalled(lambda: fail(Unreachable("nobody")), recall, Ranks())


def test_whichever_rank_is_recalled_all_end_the_wait_of_rank_0(tmp_path: Path) -> None:
    made = "{'made': 0}"
    assert two_ranks(tmp_path, IN_TWO) == [f"{made}\n{OTHER}", f"{made}\n{OWN}"]


def test_whichever_rank_is_recalled_all_hear_it_while_they_wait_for_a_place(tmp_path: Path) -> None:
    """However seldom they ask for one."""
    said = [told.splitlines()[-1] for told in two_ranks(tmp_path, FULL)]
    assert said == [OTHER, OWN]


def test_who_waits_for_a_recall_hears_it() -> None:
    recall = Recall()
    assert not recall.wait(0.01)
    threading.Timer(0.05, recall.set).start()
    assert recall.wait(60)
