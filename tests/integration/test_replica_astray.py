"""A sync service on another folder than its run's begins nothing anew, and says what it lacks."""

from __future__ import annotations

import shutil

import pytest

from syncline_proto.errors import RunConflict, StoreDamaged, SynclineError
from syncline_proto.names import RUN_DAMAGED
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, Trial, joined
from syncline_testing.waiting import wait_until

ALONE = {**QUICK, "min_replicas": 1}


@pytest.mark.parametrize(
    ("lost", "error", "what"),
    [
        ("", StoreDamaged, "Start this sync service on the folder"),
        ("00000*", RunConflict, "start the service on the folder"),
    ],
    ids=["all of it", "a fragment"],
)
def test_a_run_that_has_gone_on_is_not_begun_anew_where_there_is_nothing_of_it(
    cluster: Cluster, lost: str, error: type[SynclineError], what: str
) -> None:
    """As where a service is started on another folder than the run's: its operator sees it."""
    run = f"astray-{error.exit_code}"
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
    with pytest.raises(error, match=what):
        Trial(cluster.control_url, run, 1).replica.start()
    if not lost:
        events = f"/events?run={run}&kind={RUN_DAMAGED}"
        wait_until(lambda: cluster.get(events) != [], 20, "its operator is told")
        (told,) = cluster.get(events)
        assert "nothing of it in" in told["message"]
    cluster.sync.kill()
    assert not list(store.glob(f"runs/{run}/{lost or '*'}")), "nothing was begun anew"
    if not lost:
        shutil.rmtree(store)
    for path in moved:
        (away / path.name).rename(path)
    cluster.sync.start()
    with joined(second := Trial(cluster.control_url, run, 1, settings=ALONE)):
        assert second.replica.revision == first.replica.revision
