"""A sync service comes back at another address under a replica of two ranks: it goes on there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from syncline_testing.cluster import Cluster, free_ports
from syncline_testing.replicas import QUICK, ranks
from syncline_testing.waiting import wait_until

RUN, STEPS = "moved", 60


@pytest.mark.long
def test_both_ranks_find_a_service_that_has_come_back_at_another_port(tmp_path: Path) -> None:
    job = {
        "name": "wide", "seed": 1, "run": RUN, "settings": QUICK, "steps": STEPS, "probe": None,
        "pace_s": [0.05, 0.05],
    }  # fmt: skip
    with Cluster(tmp_path, shards=2) as cluster:
        with ranks(tmp_path, {**job, "control": cluster.control_url}, 2) as processes:
            wait_until(lambda: revision(cluster) >= 2, 60, "it trains")
            moved = cluster.syncs[1]
            moved.kill()
            (port,) = free_ports(1)
            moved.extend("--port", str(port))
            moved.start()
            codes = [process.wait(60) for process in processes]
        logs = [(tmp_path / f"wide-{rank}.log").read_text() for rank in range(2)]
        assert codes == [0, 0], logs
        assert logs[0].count("sync.moved") == 1, "one service has moved, and one rank says so"
        counted = json.loads((tmp_path / "wide.out.json").read_text())
        assert counted["inner_step"] == STEPS and counted["lives"] == 1
        assert counted["revision"] == STEPS // QUICK["sync_every"], "no round is lost"


def revision(cluster: Cluster) -> int:
    answer = cluster.http.get(f"/runs/{RUN}")
    return answer.json()["revision"] if answer.is_success else -1
