"""The benchmarks of kills and of slow replicas: their own count, curves, and what they ask."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import curves
import storm
import stragglers
from accounts import Accounts, accounts
from syncline_proto.v1 import sync_pb2 as pb
from watched import Counted

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


def test_its_own_count_is_of_accepted_pushes_each_once() -> None:
    counted = Counted()
    counted.take(header(1, 30, push("a", 1, 10), push("b", 1, 20)))
    counted.take(header(2, 45, push("a", 2, 15), push("b", 2, 99, verdict=ANOMALOUS)))
    assert counted.own_tokens == {("a", 1): 25, ("b", 1): 20}
    assert (counted.committed_tokens, counted.twice_tokens) == (45, 0)
    counted.take(header(3, 60, push("a", 2, 15), push("b", 3, 1, age=1)))
    assert (counted.own_tokens.total(), counted.twice_tokens, counted.late) == (46, 15, 1)
    assert [tokens for _, tokens in counted.course] == [30, 45, 60]


@pytest.mark.parametrize(
    ("committed", "trained", "found"),
    [
        ((50, 40), 40, Accounts(lost=0, twice=0, torn=10)),
        ((50, 40), 50, Accounts(lost=0, twice=10, torn=10)),
        ((50, 40), 30, Accounts(lost=10, twice=0, torn=10)),
        ((50, 30), 40, Accounts(lost=10, twice=0, torn=10)),
        ((60, 40), 40, Accounts(lost=0, twice=10, torn=10)),
    ],
)
def test_what_a_kill_tore_is_neither_lost_nor_twice(
    committed: tuple[int, int], trained: int, found: Accounts
) -> None:
    own = [Counter({("a", 1): 20, ("b", 1): 30}), Counter({("a", 1): 10, ("b", 1): 30})]
    assert accounts(own, committed, trained, {("a", 1)}) == found


def test_what_only_some_fragments_have_of_who_was_not_killed_is_lost() -> None:
    own = [Counter({("a", 1): 20}), Counter({("a", 1): 10})]
    assert accounts(own, (20, 10), 10, set()) == Accounts(lost=10, twice=0, torn=0)


def test_a_life_after_which_there_was_another_was_killed() -> None:
    counted = Counted()
    counted.own_tokens.update({("a", 1): 5, ("a", 3): 5, ("b", 2): 5})
    assert storm.killed([counted, Counted()]) == {("a", 1)}


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
        ({"compute_share": 0.7}, "compute_share is 0.700, over 0.6"),
    ],
)
def test_a_slow_replica_may_cost_so_much(told: dict[str, Any], says: str | None) -> None:
    fine = {"a_edit": 0.95, "async": 0.95, "edit": 0.3, "ddp": 0.3, "compute_share": 0.6}
    said = stragglers.shortfall(fine | told)
    assert said is None if says is None else says in str(said)


def test_a_rate_is_between_two_rounds() -> None:
    course = [(9.9, 60), (10.0, 100), (13.9, 460), (14.0, 500), (18.0, 900)]
    assert stragglers.rate_of(course, 12.0, 17.0) == 100.0
    for began_s, ended_s in [(9.0, 12.0), (14.5, 17.0)]:
        with pytest.raises(stragglers.Failed, match="too few rounds"):
            stragglers.rate_of(course, began_s, ended_s)


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
