"""The benchmarks of kills and of slow replicas: their own count, curves, and what they ask."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import curves
import paced
import storm
import stragglers
from accounts import Accounts, Life, Push, accounts
from answered import answered, line_of
from peers.paced_replica import cpu_s
from syncline_proto.v1 import sync_pb2 as pb
from watched import Counted

A, B = ("a", 1), ("b", 1)
ACCEPTED, ANOMALOUS = pb.VERDICT_ACCEPTED, pb.VERDICT_ANOMALOUS
FINE: dict[str, Any] = {
    "efficiency": 0.9, "longest_wait_s": 4.0, "lease_s": 3.0, "tokens_lost": 0, "tokens_twice": 0,
    "compute_share": 0.6,
}  # fmt: skip


def header(revision: int, committed: int, *pushes: pb.Contribution) -> pb.PullHeader:
    return pb.PullHeader(revision=revision, committed_tokens=committed, contributions=pushes)


def push(replica: str, seq: int, tokens: int, **how: Any) -> pb.Contribution:
    how.setdefault("verdict", ACCEPTED)
    return pb.Contribution(replica=replica, incarnation=1, seq=seq, tokens=tokens, **how)


def test_rounds_name_each_accepted_push_once() -> None:
    counted = Counted()
    counted.take(header(1, 30, push("a", 1, 10), push("b", 1, 20)))
    counted.take(header(2, 45, push("a", 2, 15), push("b", 2, 99, verdict=ANOMALOUS)))
    assert counted.pushes == {(A, 1): 10, (A, 2): 15, (B, 1): 20}
    assert (counted.committed_tokens, counted.twice_tokens) == (45, 0)
    counted.take(header(3, 60, push("a", 2, 15), push("b", 3, 1, age=1)))
    assert (sum(counted.pushes.values()), counted.twice_tokens, counted.late) == (46, 15, 1)
    assert [tokens for _, tokens in counted.courses["b"]] == [20, 21]


def test_a_replica_notes_every_answer_and_its_notes_are_read_after_a_kill(tmp_path: Path) -> None:
    def note(seq: int, verdict: Any, **more: Any) -> str:
        head = pb.PushHeader(incarnation=1, fragment=1, seq=seq, inner_steps=3)
        return line_of(head, pb.PushResponse(verdict=verdict, **more))

    path = tmp_path / "a.pushes"
    again = note(2, pb.VERDICT_DUPLICATE, judged=ACCEPTED) + note(2, pb.VERDICT_FENCED)
    stale = note(3, pb.VERDICT_DUPLICATE, judged=pb.VERDICT_STALE)
    path.write_text(note(1, ACCEPTED) + again + stale + note(4, ACCEPTED)[:-3])
    assert answered([path], 2, 10) == [{}, {(A, 1): 30, (A, 2): 30, (A, 3): 0}]


ALL = {(A, 1): 10, (A, 2): 10, (B, 1): 30}


def found(
    *counted: dict[Push, int], own: dict[Push, int] | None = None, killed: set[Life] | None = None
) -> Accounts:
    """Of a run whose service and ledger keep their books by what its rounds name."""
    books = [ALL if own is None else own] * len(counted)
    committed = [sum(one.values()) for one in counted]
    lives = {life for one in counted for life, _ in one}
    of = [
        [sum(n for (who, _), n in one.items() if who == life) for one in counted] for life in lives
    ]
    return accounts(books, counted, committed, sum(map(min, of)), {A} if killed is None else killed)


def without(*pushes: Push) -> dict[Push, int]:
    return {one: tokens for one, tokens in ALL.items() if one not in pushes}


def test_what_was_accepted_and_is_in_no_round_is_lost_whoever_was_killed() -> None:
    assert found(ALL, ALL) == Accounts(lost=0, twice=0, torn=0)
    for dropped in ALL:
        assert found(*[without(dropped)] * 2) == Accounts(lost=ALL[dropped], twice=0, torn=0)


def test_the_last_push_of_who_was_killed_may_count_or_not_where_no_answer_is_known() -> None:
    own = without((A, 2))
    for counted in (ALL, own):
        assert found(counted, counted, own=own) == Accounts(lost=0, twice=0, torn=0)
    assert found(ALL, ALL, own=own, killed=set()) == Accounts(lost=0, twice=10, torn=0)
    assert found(ALL, ALL, own=without((A, 1))) == Accounts(lost=0, twice=10, torn=0)
    assert found(ALL, ALL, own={**ALL, (A, 2): 0}) == Accounts(lost=0, twice=10, torn=0)


def test_a_kill_tears_one_push_and_what_else_only_some_fragments_have_is_lost() -> None:
    own = without((A, 2))
    assert found(ALL, own, own=own) == Accounts(lost=0, twice=0, torn=10)
    assert found(ALL, own, own=own, killed={B}) == Accounts(lost=10, twice=10, torn=0)
    assert found(ALL, without((A, 1), (A, 2)), own=own) == Accounts(lost=20, twice=0, torn=10)
    rest = without((A, 1), (A, 2))
    stale = [own | {(A, 2): 10}, rest | {(A, 1): 0}]
    assert accounts(stale, [ALL, rest], (50, 30), 30, {A}) == Accounts(0, 0, torn=20)
    assert accounts([own, rest], [ALL, rest], (50, 30), 30, {A}) == Accounts(10, 0, torn=10)


def test_the_same_push_may_have_another_number_in_another_fragment() -> None:
    """Of a fragment whose parameters it has offered: that had a number, too."""
    shifted = {(A, 2): 10, (A, 3): 10, (B, 1): 30}
    told = [ALL, shifted]
    assert accounts(told, told, (50, 50), 50, set()) == Accounts(0, 0, 0)
    unheard = [without((A, 2)), {(A, 2): 10, (B, 1): 30}]
    assert accounts(unheard, told, (50, 50), 50, {A}) == Accounts(0, 0, 0)


@pytest.mark.parametrize(
    ("committed", "trained", "says"),
    [((50, 50), 50, (0, 0)), ((50, 40), 50, (10, 0)), ((60, 50), 50, (0, 10))]
    + [((50, 50), 40, (10, 0)), ((50, 50), 60, (0, 10))],
)
def test_what_a_book_of_the_run_lacks_is_lost_and_what_it_has_more_is_twice(
    committed: tuple[int, int], trained: int, says: tuple[int, int]
) -> None:
    lost, twice = says
    assert accounts([ALL] * 2, [ALL] * 2, committed, trained, {A}) == Accounts(lost, twice, 0)


def test_a_life_after_which_there_was_another_was_killed() -> None:
    book = dict.fromkeys([(A, 1), (("a", 3), 5), (B, 2)], 5)
    assert storm.killed([book, {}]) == {A}


def test_what_children_computed_counts_once_they_are_gone() -> None:
    before = cpu_s(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-S", "-c", busy], check=True)
    assert cpu_s(os.getpid()) - before > 0.25


@pytest.mark.parametrize(
    ("bound", "count"), [(None, 4), ("max 100000", 4), ("150000 100000", 1.5), ("900000 100000", 4)]
)
def test_a_share_of_compute_is_of_what_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str | None, count: float
) -> None:
    """Of 64 processors two may be ours: over 60 % of those replicas take each other's."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 5, 6}, raising=False)
    monkeypatch.setattr(paced, "CPU_MAX", tmp_path / "cpu.max")
    if bound is not None:
        (tmp_path / "cpu.max").write_text(f"{bound}\n")
    assert paced.processors() == count


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({}, None),
        ({"efficiency": 0.899}, "efficiency is 0.899, under 0.9"),
        ({"longest_wait_s": 4.01}, "the longest wait is 4.01 s, over 4"),
        ({"tokens_lost": 32}, "32 tokens are lost"),
        ({"tokens_twice": 64}, "64 tokens count twice"),
        ({"compute_share": 0.61, "efficiency": 0.1}, "compute_share is 0.610, over 0.6"),
    ],
)
def test_a_storm_says_what_harm_it_did(told: dict[str, Any], says: str | None) -> None:
    said = storm.shortfall(FINE | told)
    assert said is None if says is None else says in str(said)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({}, None),
        ({"a_edit": 0.94}, "a_edit is 0.940"),
        ({"async": 0.5}, "async is 0.500, under 0.95"),
        ({"edit": 0.1, "ddp": 0.1}, None),
        ({"losses": {"a_edit": 2.2, "async": 2.1, "edit": 2.0}}, "a_edit has come to 2.200, over"),
        ({"losses": {"a_edit": 2.0, "async": math.nan, "edit": 2.0}}, "async has come to nan"),
        ({"compute_share": 0.7}, "compute_share is 0.700, over 0.6"),
    ],
)
def test_a_slow_replica_may_cost_so_much(told: dict[str, Any], says: str | None) -> None:
    fine = {"a_edit": 0.95, "async": 0.95, "edit": 0.3, "ddp": 0.3, "compute_share": 0.6}
    fine |= {"losses": {"a_edit": 2.1, "async": 2.1, "edit": 2.0, "ddp": 1.0}}
    said = stragglers.shortfall(fine | told)
    assert said is None if says is None else says in str(said)


def pushes(every_s: float, tokens: int, first_s: float, until_s: float) -> list[tuple[float, int]]:
    """The course of a replica whose pushes each have what it has trained since the one before."""
    count = int((until_s - first_s) / every_s) + 1
    return [(first_s + n * every_s, (n + 1) * tokens) for n in range(count)]


@given(st.floats(0.0, 4.0), st.floats(0.0, 4.0), st.floats(5.0, 50.0))
def test_a_rate_is_what_was_trained_in_the_time_wherever_pushes_fall(
    one_s: float, other_s: float, seconds: float
) -> None:
    courses = [pushes(4.0, 400, one_s, 99.0), pushes(4.0, 100, other_s, 99.0)]
    assert math.isclose(stragglers.rate_of(courses, 10.0, 10.0 + seconds), 125.0, rel_tol=1e-9)


def test_the_time_of_a_replica_that_has_stopped_counts() -> None:
    goes_on, stops = pushes(4.0, 400, 1.0, 99.0), pushes(4.0, 400, 1.0, 34.0)
    assert math.isclose(stragglers.rate_of([goes_on, stops], 13.0, 53.0), 100.0 + 50.0)
    with pytest.raises(stragglers.Failed, match="too few rounds"):
        stragglers.rate_of([goes_on], 14.0, 16.0)


def test_losses_are_compared_after_equal_tokens() -> None:
    quick: list[stragglers.Line] = [(1.0, 0, 50, 4.0), (3.0, 0, 100, 2.0), (5.0, 0, 150, 1.0)]
    slow: list[stragglers.Line] = [(1.0, 0, 40, 5.0), (3.0, 0, 90, 3.0)]
    assert stragglers.losses_at_equal_tokens({"a": quick, "b": slow}) == {"a": 2.0, "b": 3.0}


def test_losses_of_all_are_one_course_over_time_and_tokens() -> None:
    quick = [(5.0, 1, 10, 4.0), (6.5, 2, 20, 2.0), (7.5, 3, 30, 1.0)]
    slow = [(6.0, 1, 15, 6.0)]
    course = stragglers.smoothed([quick, slow])
    assert course == [(1.0, 0, 20, 4.0), (3.0, 0, 30, 1.0)]


def test_curves_are_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    curves.write(page, "A <title>", {"chart": {"one": ([0, 10], [1, 2]), "two": ([5, 10], [3, 4])}})
    text = page.read_text()
    assert "A &lt;title&gt;" in text and "uPlot" in text
    assert "src=" not in text.partition("<script>")[0]
    assert '"label": "one"' in text and "null" in text, "two begins later"


def test_efficiency_is_of_what_processes_train_that_are_there_and_never_wait() -> None:
    a_second = storm.STEP_TOKENS / storm.STEP_S
    assert math.isclose(storm.efficiency(round(90 * a_second), 100.0), 0.9)
    nobody: Any = None  # nor is a process looked at
    slot = storm.Slot(nobody, Path("a"), nobody, started_s=10.0)
    slot.up_s, slot.started_s = slot.up_until(25.0), 27.0
    assert (slot.up_s, slot.up_until(30.0)) == (15.0, 18.0), "nobody was there for two seconds"
