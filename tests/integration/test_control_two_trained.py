"""A run with two control planes, by their addresses: it goes on whichever of them is killed."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from syncline_testing.cluster import START_S, Cluster, Service, free_ports
from syncline_testing.postgres import Server
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined
from syncline_testing.waiting import wait_until

EVERY = QUICK["sync_every"]


@pytest.mark.long
def test_a_run_goes_on_with_the_control_plane_that_is_left(
    tmp_path: Path, postgres: Server
) -> None:
    database = postgres.database()
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    arguments = ["--port", str(port), "--database", database]
    second = Service("syncline_control", f"{url}/readyz", arguments, tmp_path / "second.log")
    cluster = Cluster(tmp_path)
    cluster.control.extend("--database", database)
    both = f"{cluster.control_url},{url}"
    cluster.sync.extend("--control", both)

    def told() -> int:
        view = httpx.get(f"{url}/v1/runs/one", trust_env=False).raise_for_status().json()
        return view["committed_tokens"]

    try:
        second.start()
        with cluster, joined(trial := Trial(both, "one", 1, settings=QUICK)):
            trial.step(EVERY)
            cluster.control.kill()
            trial.step(2 * EVERY)
            wait_until(lambda: told() == 3 * EVERY * STEP_TOKENS, START_S, "all rounds are told")
            assert trial.replica.incarnation == 1
            with joined(late := Trial(both, "two", 1, settings=QUICK)):
                assert late.replica.incarnation == 1, "and others can join"
    finally:
        second.stop()
