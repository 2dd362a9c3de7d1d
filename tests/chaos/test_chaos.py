"""The short form of ``make chaos``: a few kills, and every push is in exactly one revision."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from chaos.__main__ import options
from chaos.storm import REPLICAS, SIZES, Storm
from syncline_proto.v1 import sync_pb2 as pb
from syncline_testing.cluster import Cluster

ROOT = Path(__file__).parents[2]
SEED = 7
KILLS, ASYNC_KILLS, FEW_KILLS = 6, 4, 3

pytestmark = pytest.mark.timeout(300)
"""Beyond what a storm allows itself, which knows better what it was at."""


def test_the_long_form_kills_fifty_times_at_least() -> None:
    """As `make chaos` begins it, with nothing said."""
    told = subprocess.run(
        ["make", "--dry-run", "chaos"], cwd=ROOT, capture_output=True, text=True, check=True,
        env={name: text for name, text in os.environ.items() if name != "CHAOS"},
    ).stdout  # fmt: skip
    (words,) = re.findall(r" -m chaos *(.*)$", told, flags=re.MULTILINE)
    assert options().parse_args(words.split()).kills >= 50


def test_a_service_killed_at_random_instants_counts_every_push_once(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        storm = Storm(cluster, SEED, KILLS)
        figures = storm.run()
    assert (figures.lost, figures.twice) == (0, 0), storm.ledger.lost()
    assert figures.kills >= KILLS
    assert all(line.revision >= 2 for line in storm.ledger.lines)
    assert figures.accepted >= REPLICAS * len(SIZES)
    assert figures.owed > 0, "what int4 and top-k lose came later, and counted once"


def test_a_service_that_is_killed_as_it_steps_two_pushes_where_parameters_lie(
    tmp_path: Path,
) -> None:
    """In int8 both ways no sum is in memory, and the parameters change in place."""
    with Cluster(tmp_path) as cluster:
        storm = Storm(cluster, SEED, KILLS, quorum=REPLICAS - 1, down="int8", up="int8")
        figures = storm.run()
    assert (figures.lost, figures.twice) == (0, 0), storm.ledger.lost()
    assert figures.kills >= KILLS and figures.accepted >= REPLICAS * len(SIZES)
    assert figures.pairs > 0 and figures.differences > 0


@pytest.mark.long
def test_a_service_that_publishes_before_it_writes_loses_one_revision_at_most(
    tmp_path: Path,
) -> None:
    """And says so: what goes back does so under a new epoch, and nothing counts twice."""
    with Cluster(tmp_path) as cluster:
        storm = Storm(cluster, SEED, ASYNC_KILLS, durability="async")
        figures = storm.run()
    assert (figures.lost, figures.twice) == (0, 0), storm.ledger.lost()
    assert figures.kills >= ASYNC_KILLS and figures.accepted >= REPLICAS * len(SIZES)
    assert max(line.epoch for line in storm.ledger.lines) > 1, "no kill came before a write"


@pytest.mark.long
def test_all_ranks_hear_that_a_round_has_closed_which_a_kill_may_undo_after_that(
    tmp_path: Path,
) -> None:
    """None waits for one that has gone on; and nothing counts twice, as above."""
    with Cluster(tmp_path) as cluster:
        storm = Storm(cluster, SEED, KILLS, durability="async", quorum=REPLICAS - 1, late=0)
        figures = storm.run()
    assert (figures.lost, figures.twice) == (0, 0), storm.ledger.lost()
    assert figures.kills >= KILLS and figures.late == 0
    assert any(sent.judged == pb.VERDICT_STALE for sent in storm.ledger.sent.values())


@pytest.mark.long
def test_where_rounds_do_not_wait_for_everyone_what_came_late_counts_once_and_with_its_age(
    tmp_path: Path,
) -> None:
    """And pulls by difference follow what is published, whoever has lost which revision."""
    with Cluster(tmp_path) as cluster:
        storm = Storm(cluster, SEED, FEW_KILLS, quorum=REPLICAS - 1, down="int8")
        figures = storm.run()
    assert (figures.lost, figures.twice) == (0, 0), storm.ledger.lost()
    assert figures.kills >= FEW_KILLS and figures.accepted >= REPLICAS * len(SIZES)
    assert figures.late > 0 and figures.differences > 0


@pytest.mark.long
def test_where_no_round_waits_a_window_and_its_momentum_outlive_every_kill(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        storm = Storm(cluster, SEED, FEW_KILLS, strategy="async", down="int8")
        figures = storm.run()
    assert (figures.lost, figures.twice) == (0, 0), storm.ledger.lost()
    assert figures.kills >= FEW_KILLS and figures.accepted >= REPLICAS * len(SIZES)
    assert figures.late > 0
    assert all(line.window and line.window.number > 0 for line in storm.ledger.lines)


@pytest.mark.long
def test_services_that_share_a_run_are_killed_one_at_a_time(tmp_path: Path) -> None:
    with Cluster(tmp_path, shards=2) as cluster:
        storm = Storm(cluster, SEED, FEW_KILLS)
        figures = storm.run()
    assert (figures.lost, figures.twice) == (0, 0), storm.ledger.lost()
    assert figures.kills >= FEW_KILLS
    assert all(line.revision >= 2 for line in storm.ledger.lines)
