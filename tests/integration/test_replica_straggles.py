"""A replica that is slower than another is given fewer inner steps, while both train."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, Trial, joined, together
from syncline_testing.waiting import wait_until

SETTINGS = {
    **QUICK,
    "sync_every": 8,
    "min_replicas": 2,
    "penalty": {"step_power": 1.0},
    "stragglers": {"policy": "fewer-steps", "seconds": 1.0},
}
FAST_S, SLOW_S = 0.1, 0.3


def train(trial: Trial, pace_s: float) -> None:
    """Train until the run ends, with a rest before each step."""
    while not trial.replica.done:
        time.sleep(pace_s)
        trial.step()


@pytest.mark.long
@pytest.mark.parametrize("asynchronous", [False, True], ids=["barrier", "asynchronous"])
def test_a_slow_replica_is_named_and_makes_fewer_steps(tmp_path: Path, asynchronous: bool) -> None:
    settings = {**SETTINGS, "asynchronous": asynchronous}
    with Cluster(tmp_path) as cluster:
        fast, slow = (Trial(cluster.control_url, "paced", s, settings=settings) for s in (0, 1))

        def steps(name: str) -> list[int]:
            """Of each push of a replica, the newest last."""
            rounds = cluster.get("/runs/paced/rounds?limit=1000")
            pushed = (one["contributions"] for one in rounds if one["kind"] != "parameters")
            return [c["inner_steps"] for parts in pushed for c in parts if c["replica"] == name]

        def follow() -> None:
            try:
                wait_until(lambda: bool(steps("replica-1")), 60, "a push")
                assert steps("replica-0")[0] == steps("replica-1")[0] == 8
                wait_until(lambda: steps("replica-1")[-1] < 8, 120, "fewer steps")
                assert steps("replica-0")[-1] == 8, "the other goes on as before"
                found = {one["replica"]: one for one in cluster.get("/runs/paced/replicas")}
            finally:
                cluster.post("/runs/paced/stop")
            assert found["replica-1"]["straggles"] and not found["replica-0"]["straggles"]
            assert found["replica-1"]["step_share"] < 1.0 == found["replica-0"]["step_share"]

        with joined(fast, slow):
            acts = follow, lambda: train(fast, FAST_S), lambda: train(slow, SLOW_S)
            together(*acts, limit_s=200)
        events = [one["kind"] for one in cluster.get("/events?run=paced")]
        assert events.count("replica.straggles") == 1
        assert "replica.steps" in events


@pytest.mark.long
@pytest.mark.timeout(400)
def test_whom_fewer_steps_do_not_help_is_let_go_and_the_others_go_on(tmp_path: Path) -> None:
    rules = {"policy": "let-go", "seconds": 1.0, "let_go_seconds": 1.0}
    settings = {**SETTINGS, "min_replicas": 1, "expected_replicas": 2, "stragglers": rules}
    with Cluster(tmp_path) as cluster:
        fast, slow = (Trial(cluster.control_url, "let", s, settings=settings) for s in (0, 1))

        def states() -> list[str]:
            """By name: they are listed in the order in which they came."""
            found = {one["replica"]: one["state"] for one in cluster.get("/runs/let/replicas")}
            return [found[name] for name in sorted(found)]

        def follow() -> None:
            try:
                wait_until(lambda: states() == ["alive", "left"], 200, "the slow one has left")
                before = fast.replica.revision
                wait_until(lambda: fast.replica.revision > before + 1, 60, "the other goes on")
            finally:
                cluster.post("/runs/let/stop")

        def train_until_it_is_let_go() -> None:
            train(slow, SLOW_S * 2)
            slow.replica.close()

        with joined(fast, slow):
            acts = follow, lambda: train(fast, FAST_S / 5), train_until_it_is_let_go
            together(*acts, limit_s=280)
        assert slow.replica.drained and not fast.replica.drained
        told = [e["kind"] for e in cluster.get("/events?run=let") if e["replica"] == "replica-1"]
        order = ["replica.straggles", "replica.steps", "replica.draining", "replica.left"]
        assert [kind for kind in told if kind in order] == order
