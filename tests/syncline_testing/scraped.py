"""What Prometheus would read of a replica, by name: asked over HTTP, as it asks."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from syncline import Replica
from syncline.metrics import serve
from syncline_testing.cluster import free_ports


def scraped(port: int, run: str = "alone", replica: str = "alone") -> dict[str, float]:
    """Every series that has a replica's labels, by name, and of bytes by direction, too."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).raise_for_status().text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "replica" in sample.labels:
                assert (sample.labels["run"], sample.labels["replica"]) == (run, replica)
                name = sample.name.removeprefix("syncline_worker_")
                found[name + sample.labels.get("direction", "")] = sample.value
    return found


def lateness(replica: Replica) -> dict[str, float]:
    """What is told of its pushes that came late or counted nothing, where there is any."""
    (port,) = free_ports(1)
    with serve(replica, port):
        found = scraped(port, replica.run, replica.name)
    names = ("stale_pushes_total", "aged_pushes_total", "anomalous_pushes_total", "last_age")
    return {name: found[name] for name in names if found[name]}
