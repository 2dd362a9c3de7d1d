"""Whichever of a replica's ranks has SIGTERM, all leave; also where they wait, or join."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined, ranks
from syncline_testing.waiting import wait_until
from syncline_testing.warm import Program

TWO = {**QUICK, "min_replicas": 2}


@contextmanager
def pair(
    cluster: Cluster, folder: Path, run: str, settings: dict[str, Any]
) -> Iterator[list[Program]]:
    """A replica of two ranks (FSDP2 over gloo) that comes to a run."""
    job = {"run": run, "name": "pair", "seed": 3, "settings": settings, "steps": 100, "probe": -1}
    with ranks(folder, {**job, "control": cluster.control_url}, 2) as processes:
        yield processes


def said(folder: Path, rank: int = 0) -> str:
    """Nothing before it has begun."""
    log = folder / f"pair-{rank}.log"
    return log.read_text() if log.exists() else ""


def view(cluster: Cluster, run: str) -> dict[str, Any]:
    """Of the pair; nothing before it has come."""
    found = cluster.get(f"/runs/{run}/replicas")
    return next((one for one in found if one["replica"] == "pair"), {})


def wait_for_the_round(cluster: Cluster, run: str) -> None:
    def waits() -> bool:
        return view(cluster, run).get("progress", {}).get("phase") == "waiting"

    wait_until(waits, 60, "it waits for the round")


def test_one_rank_is_heard_while_a_round_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    """What was pushed counts, if the round closes in time, and the step that comes after it."""
    other = Trial(cluster.control_url, "told", 5, settings=TWO)
    with joined(other), pair(cluster, tmp_path, "told", TWO) as processes:
        wait_for_the_round(cluster, "told")
        processes[1].send_signal(signal.SIGTERM)
        wait_until(lambda: "replica.drains" in said(tmp_path), 20, "rank 0 has heard of it")
        other.step(8)
        other.replica.finish()
        codes = [process.wait(60) for process in processes]
    assert other.replica.committed_tokens == (8 + 5 * 2) * STEP_TOKENS
    assert codes == [0, 0], said(tmp_path)
    assert "another of its ranks asked it to leave" in said(tmp_path)
    assert view(cluster, "told")["state"] == "left"


@pytest.mark.long
def test_one_rank_is_enough_where_a_round_cannot_close(cluster: Cluster, tmp_path: Path) -> None:
    """Within the time that is promised; the exchange alone would wait for minutes."""
    settings = {**TWO, "timeouts": {"lease": 2.0, "round_deadline": 3.0}}
    other = Trial(cluster.control_url, "stuck", 5, settings=settings)
    with joined(other), pair(cluster, tmp_path, "stuck", settings) as processes:
        wait_for_the_round(cluster, "stuck")
        processes[1].send_signal(signal.SIGTERM)
        codes = [process.wait(3 + 2 + 25) for process in processes]
    assert codes == [0, 0], said(tmp_path)
    assert "leave.early" in said(tmp_path)
    assert view(cluster, "stuck")["state"] == "left"


@pytest.mark.parametrize(
    ("run", "more", "waits"),
    [
        ("full", {"max_replicas": 1}, "replica.waits"),
        ("phase", {"warmup_steps": 3}, "join.waits"),
    ],
)
def test_one_rank_is_heard_while_they_join(
    cluster: Cluster, tmp_path: Path, run: str, more: dict[str, Any], waits: str
) -> None:
    """A place in a run that is full is waited for, and the end of a synchronous phase."""
    settings = QUICK | more
    other = Trial(cluster.control_url, run, 5, settings=settings)
    with joined(other):
        other.step(1)
        with pair(cluster, tmp_path, run, settings) as processes:
            wait_until(lambda: waits in said(tmp_path), 60, "it waits")
            processes[1].send_signal(signal.SIGTERM)
            codes = [process.wait(60) for process in processes]
    assert codes == [1, 1]
    assert all("CalledOff" in said(tmp_path, rank) for rank in range(2))
