"""Two sync services under one name, on two folders: the newer counts, and the older says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncline_testing.cluster import Cluster, Service, free_ports
from syncline_testing.waiting import wait_until


@pytest.mark.long
def test_the_older_of_two_that_live_is_refused_and_a_restart_is_not(tmp_path: Path) -> None:
    def listed() -> str:
        (one,) = cluster.get("/sync-services")
        return one["address"] if one["alive"] else "away"

    def refusals(service: Service) -> int:
        return service.log.read_text().count("control plane refused")

    with Cluster(tmp_path) as cluster:
        older = cluster.sync
        newer, places = second(cluster), free_ports(2)
        try:
            for times, port in enumerate(places, start=1):
                address = f"127.0.0.1:{port}"
                newer.extend("--port", str(port))
                newer.start()
                wait_until(lambda at=address: listed() == at, 20, "the newer has the name")
                more = refusals(older) + 1
                wait_until(lambda n=more: refusals(older) >= n, 20, "the older says so")
                assert listed() == address
                if times == 1:
                    newer.kill()
            said = older.log.read_text()
            assert f"under the name sync-0, at 127.0.0.1:{places[1]}" in said, said
            assert "stop the one whose folder has not the runs" in said and "--name" in said
            assert refusals(newer) == 0, newer.last_words()
        finally:
            newer.stop()
        wait_until(lambda: listed() == cluster.sync_address, 20, "it has its name again")


def second(cluster: Cluster) -> Service:
    """Another sync service with the name of the first, whose port is yet to be given."""
    health, metrics = free_ports(2)
    options = [
        *("--control", cluster.control_url, "--host", "127.0.0.1"),
        *("--health-port", str(health), "--metrics-port", str(metrics)),
        *("--data", str(cluster.folder / "other")),
    ]
    ready = f"http://127.0.0.1:{metrics}/metrics"
    return Service("syncline_sync", ready, options, cluster.folder / "other.log")
