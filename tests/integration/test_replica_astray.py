"""A sync service on another folder than its run's begins nothing anew, and says what it lacks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline_proto.errors import RunConflict, StoreDamaged
from syncline_proto.names import RUN_DAMAGED
from syncline_testing.cluster import Cluster, Service, free_ports
from syncline_testing.replicas import QUICK, Trial, joined
from syncline_testing.waiting import wait_until

ALONE = {**QUICK, "min_replicas": 1}


@pytest.mark.parametrize(
    ("lost", "what"),
    [
        ("", "there is nothing of it in .* Start this sync service on the folder"),
        ("00000*", "nothing of its fragment .* Bring it back from a copy"),
    ],
    ids=["all of it", "a fragment"],
)
def test_a_run_that_has_gone_on_is_not_begun_anew_where_there_is_nothing_of_it(
    cluster: Cluster, lost: str, what: str
) -> None:
    """As where a service is started on another folder than the run's: its operator sees it."""
    run = f"astray-{len(lost)}"
    first = Trial(cluster.control_url, run, 0, settings=ALONE)
    with joined(first):
        first.step(5)
    wait_until(lambda: cluster.get(f"/runs/{run}")["revision"] > 0, 20, "the round is told")
    cluster.sync.kill()
    store, away = cluster.folder / "store", cluster.folder / "elsewhere" / run
    away.mkdir(parents=True)
    moved = list(store.glob(f"runs/{run}/{lost}")) if lost else [store]
    for path in moved:
        path.rename(away / path.name)
    cluster.sync.start()
    with pytest.raises(StoreDamaged, match=what):
        Trial(cluster.control_url, run, 1).replica.start()
    events = f"/events?run={run}&kind={RUN_DAMAGED}"
    wait_until(lambda: cluster.get(events) != [], 20, "its operator is told")
    (told,) = cluster.get(events)
    assert re.search(what, told["message"])
    cluster.sync.kill()
    assert not list(store.glob(f"runs/{run}/{lost or '*'}")), "nothing was begun anew"
    if not lost:
        shutil.rmtree(store)
    for path in moved:
        (away / path.name).rename(path)
    cluster.sync.start()
    with joined(second := Trial(cluster.control_url, run, 1, settings=ALONE)):
        assert second.replica.revision == first.replica.revision


def test_a_replica_that_finds_a_fragment_lost_begins_it_no_more_than_its_service(
    tmp_path: Path,
) -> None:
    """Which knows of the run's revisions by the control plane, whose database is lost as well."""
    with Cluster(tmp_path) as cluster:
        with joined(first := Trial(cluster.control_url, "lost", 0, settings=ALONE)):
            first.step(5)
        cluster.sync.kill()
        cluster.control.kill()
        for path in (*tmp_path.glob("store/runs/lost/00000*"), *tmp_path.glob("control*")):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.suffix != ".log":
                path.unlink()
        (tmp_path / "store" / "membership.json").unlink()
        cluster.control.start()
        cluster.sync.start()
        with pytest.raises(RunConflict, match="start the service on the folder"):
            Trial(cluster.control_url, "lost", 1, settings=ALONE).replica.start()
        assert not list(tmp_path.glob("store/runs/lost/00000*")), "nothing was begun anew"


@pytest.fixture
def other(cluster: Cluster) -> Iterator[Service]:
    """A service that takes the name of the cluster's own, on a folder of its own."""
    port, health, metrics = free_ports(3)
    options = [
        *("--control", cluster.control_url, "--host", "127.0.0.1", "--port", str(port)),
        *("--health-port", str(health), "--metrics-port", str(metrics)),
        *("--data", str(cluster.folder / "others")),
    ]
    ready = f"http://127.0.0.1:{metrics}/metrics"
    service = Service("syncline_sync", ready, options, cluster.folder / "other.log")
    service.start()
    refused = "both are alive"
    wait_until(lambda: refused in cluster.sync.log.read_text(), 30, "the older one is refused")
    yield service
    service.stop()


@pytest.mark.long
def test_a_run_of_who_took_the_name_is_missed_once_that_has_ended(
    cluster: Cluster, other: Service
) -> None:
    """Not while it is served: its operator would be told of damage that there is none of."""
    with joined(trial := Trial(cluster.control_url, "others", 0, settings=ALONE)):
        trial.step(9)
    wait_until(lambda: cluster.get("/runs/others")["revision"] > 1, 20, "the rounds are told")
    events = f"/events?run=others&kind={RUN_DAMAGED}"
    assert cluster.get(events) == []
    other.stop()
    wait_until(lambda: cluster.get(events) != [], 60, "its operator is told")
    (told,) = cluster.get(events)
    assert "it has gone on, and there is nothing of it in" in told["message"]
