"""A loop of one's own that bears a lost lease, and joins again between two of its steps."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

from syncline_proto.errors import LeaseLost
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined, published, ranks
from syncline_testing.sleeping import LEASE_S, sleeps
from syncline_testing.waiting import wait_until

ALONE = {
    **QUICK,
    "min_replicas": 1,
    "sync_every": 1000,
    "timeouts": {"lease": LEASE_S, "round_deadline": 20.0},
}


def test_a_plain_loop_goes_on_as_another_life(cluster: Cluster) -> None:
    """From the run's revision: what was not pushed is lost, and so is the step that heard of it."""
    trial = Trial(cluster.control_url, "plain", 0, settings=ALONE)
    replica, begin = trial.replica, trial.parameters()
    with joined(trial):
        replica.bear_loss()
        assert not trial.step(3).replica.rejoin(), "nothing is lost yet"
        sleeps(cluster, replica)
        trial.step()
        stands = trial.parameters()
        trial.step(2)  # a loop that asks late
        assert all(torch.equal(stands[name], p) for name, p in trial.parameters().items())
        assert replica.rejoin()
        assert (replica.incarnation, replica.inner_step) == (2, 0)
        assert all(torch.equal(begin[name], p) for name, p in trial.parameters().items())
        assert not trial.step(5).replica.rejoin()
    assert replica.committed_tokens == 5 * STEP_TOKENS, "of the second life"
    values, revision = published(cluster.sync_address, "plain")
    assert revision == 1
    for name, p in trial.parameters().items():
        assert torch.equal(p, torch.from_numpy(values[name])), name


def test_who_was_removed_does_not_come_back(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "removed", 0, settings=ALONE)
    with pytest.raises(LeaseLost, match="An operator removed this replica"), joined(trial):
        trial.replica.bear_loss()
        trial.step(2)
        cluster.post("/runs/removed/replicas/replica-0/kick")
        wait_until(lambda: trial.step().replica.rejoin(), 20, "it has heard of it")


@pytest.mark.long
def test_the_ranks_of_a_replica_come_back_together(cluster: Cluster, tmp_path: Path) -> None:
    """Both are stopped, as a machine that slept, for longer than their lease."""
    job = {
        "control": cluster.control_url,
        "run": "wide",
        "name": "wide",
        "seed": 3,
        "settings": {**ALONE, "sync_every": 8, "token_budget": 40 * STEP_TOKENS * 2},
        "steps": 100_000,
        "probe": -1,
        "pace_s": [0.02, 0.02],
        "bears": True,
    }

    def has_pushed() -> bool:
        answer = cluster.http.get("/runs/wide")
        return answer.is_success and answer.json()["revision"] >= 1

    def is_lost() -> bool:
        (one,) = cluster.get("/runs/wide/replicas")
        return one["state"] == "lost"

    with ranks(tmp_path, job, 2) as processes:
        wait_until(has_pushed, 60, "it has pushed")
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        wait_until(is_lost, 20, "the lease has run out")
        for process in processes:
            process.send_signal(signal.SIGCONT)
        assert [process.wait(90) for process in processes] == [0, 0]
    counted = json.loads((tmp_path / "wide.out.json").read_text())
    told = [event["kind"] for event in cluster.get("/events?run=wide")]
    # A machine that is busy enough may cost another lease; and nothing else a life.
    assert counted["lives"] == 1 + told.count("replica.lost") >= 2
    assert counted["committed"] >= 40 * STEP_TOKENS * 2, "no token of the first life twice"

    def all_is_told() -> bool:
        return cluster.get("/runs/wide")["committed_tokens"] == counted["committed"]

    wait_until(all_is_told, 20, "all rounds are told")
