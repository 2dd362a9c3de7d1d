"""A run with no more replicas than it may have: who comes then waits for a place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Thread

import pytest
from structlog.testing import capture_logs

from syncline_proto.errors import CalledOff
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, Trial, joined
from syncline_testing.waiting import wait_until

SETTINGS = {**QUICK, "max_replicas": 1}


def waits(logs: Sequence[Mapping[str, object]]) -> bool:
    return any(line["event"] == "replica.waits" for line in logs)


@pytest.mark.long
def test_who_comes_to_a_full_run_joins_when_another_has_left(cluster: Cluster) -> None:
    a, b = (Trial(cluster.control_url, "full", seed, settings=SETTINGS) for seed in range(2))
    with capture_logs() as logs:
        coming = Thread(target=b.replica.start)
        with joined(a):
            a.step(QUICK["sync_every"])
            coming.start()
            wait_until(lambda: waits(logs), 20, "it waits")
            a.step(QUICK["sync_every"])
        coming.join(60)
        b.step(QUICK["sync_every"])
        b.replica.close()
    assert b.replica.revision == 3
    assert [line["event"] for line in logs].count("replica.waits") == 1


def test_who_waits_for_a_place_can_be_called_off(cluster: Cluster) -> None:
    a, b = (Trial(cluster.control_url, "off", seed, settings=SETTINGS) for seed in range(2))
    ended: list[BaseException] = []

    def come() -> None:
        try:
            b.replica.start()
        except CalledOff as error:
            ended.append(error)

    with joined(a), capture_logs() as logs:
        coming = Thread(target=come)
        coming.start()
        wait_until(lambda: waits(logs), 20, "it waits")
        b.replica.request_drain()
        coming.join(20)
        assert ended
