"""What a replica tells of itself reaches the control plane: what its loop reports, and its pace."""

from __future__ import annotations

import pytest

from syncline import replica
from syncline.metrics import Figures
from syncline_proto.rest import Progress
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, Trial, joined
from syncline_testing.waiting import wait_until

ALONE = {**QUICK, "min_replicas": 1}


def scraped(trial: Trial) -> float | None:
    """What Prometheus would be told of its pace."""
    name = "syncline_worker_tokens_per_second"
    found = [one for one in Figures(trial.replica).collect() if one.name == name]
    return found[0].samples[0].value if found else None


@pytest.mark.long
def test_the_pace_of_a_loop_that_reports_none_is_measured(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "paced", 0, settings=ALONE)
    with joined(trial):

        def told() -> float | None:
            trial.step(2)
            (one,) = cluster.get("/runs/paced/replicas")
            return one["progress"]["tokens_per_second"]

        assert scraped(trial) is None, "a first heartbeat measures nothing"
        wait_until(lambda: (told() or 0.0) > 0, 20, "a pace")
        assert (scraped(trial) or 0.0) > 0
        trial.replica.report(tokens_per_second=9.0)
        wait_until(lambda: told() == 9.0, 20, "the loop's own goes before")
        assert scraped(trial) == 9.0


def test_points_and_reports_reach_the_control_plane(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "told", 0, settings=ALONE)
    with joined(trial):
        trial.step(4)
        trial.replica.report(loss=float("nan"), lr=1e-3, tokens_per_second=9.0)
        trial.replica.add_point("held-out", 2.5)
    curves = {(c["replica"], c["kind"]): c["loss"] for c in cluster.get("/runs/told/metrics")}
    assert len(curves["replica-0", "train"]) == 4
    assert curves["replica-0", "held-out"] == [2.5]


def test_a_life_that_comes_back_tells_nothing_of_the_one_before(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it joins its heartbeat goes out, under the new incarnation."""
    trial = Trial(cluster.control_url, "back", 0, settings=ALONE)
    with joined(trial):
        trial.step(4)
    told: list[Progress] = []
    progress_of = replica.progress_of
    monkeypatch.setattr(
        replica, "progress_of", lambda *known: told.append(progress_of(*known)) or told[-1]
    )
    with joined(trial):
        wait_until(lambda: bool(told), 20, "its heartbeat")
        assert (told[0].inner_step, told[0].tokens, told[0].loss) == (0, 0, None)
