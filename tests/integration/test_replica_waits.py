"""What a replica says of a wait: for others, and whom; for a sync service that is away."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs
from structlog.typing import EventDict

from syncline import council, outage
from syncline.crowd import cores
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, Trial, joined, states_of, together
from syncline_testing.victim import victim, wide_model
from syncline_testing.waiting import wait_until

TWO = {**QUICK, "min_replicas": 2}
ALONE = {**QUICK, "min_replicas": 1}
LEASE_S, DEADLINE_S = 3.0, 4.0


def until_said(logs: Sequence[EventDict], event: str) -> None:
    wait_until(lambda: any(log["event"] == event for log in logs), 30, f"{event} is said")


def logs_of_an_outage(cluster: Cluster, run: str) -> Sequence[EventDict]:
    """What is said where the sync service is away, and comes back once that was said."""
    trial = Trial(cluster.control_url, run, 0, settings=ALONE)
    with capture_logs() as logs, joined(trial):
        trial.step(2)
        cluster.sync.kill()

        def mend() -> None:
            until_said(logs, "sync.away")
            cluster.sync.start()

        together(lambda: trial.step(4).replica.finish(), mend)
    return logs


def test_a_sync_service_that_is_away_is_said_once_and_so_is_its_return(cluster: Cluster) -> None:
    """One word for all fragments that wait."""
    logs = logs_of_an_outage(cluster, "said")
    said = [log for log in logs if log["event"].startswith("sync.")]
    assert [log["event"] for log in said] == ["sync.away", "sync.back"]
    assert f"The sync service at {cluster.sync_address} does not answer" in said[0]["why"]
    assert said[1]["at"] == cluster.sync_address
    limit = "300 s, less once this replica is to leave"
    assert said[0]["so"] == f"waiting up to {limit}; start the service again on its data folder"


def test_a_long_wait_for_others_is_said_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(council, "LONG_S", 0.4)
    a, b = (Trial(cluster.control_url, "slow", seed, settings=TWO) for seed in range(2))
    with capture_logs() as logs, joined(a, b):

        def come_late() -> None:
            until_said(logs, "round.waits")
            b.step(5)

        together(lambda: a.step(5), come_late)
        together(a.replica.finish, b.replica.finish)
    (said,) = [log for log in logs if log["event"] == "round.waits"]
    assert said["why"] == "the first round waits for min_replicas 2, and 1 of 2 have pushed"


@pytest.mark.long
def test_what_is_waited_for_with_too_few_replicas_counts_as_a_pause(cluster: Cluster) -> None:
    """So no patience runs out."""
    a, b = (Trial(cluster.control_url, "few", seed, settings=TWO) for seed in range(2))

    def come() -> None:
        wait_until(lambda: a.replica.phase == "waiting", 30, "it has pushed")
        wait_until(lambda: bool(cluster.get("/runs/few")["waits_for"]), 30, "it waits for another")
        wait_until(lambda: a.replica.stats.paused_s > 0, 30, "a heartbeat has told it")
        with joined(b):
            b.step(5).replica.finish()

    with joined(a):
        together(lambda: a.step(5), come)
        assert a.replica.stats.paused_s > 0
        a.replica.finish()


@pytest.mark.long
def test_below_its_minimum_a_run_stands_still_and_goes_on_with_who_comes(
    cluster: Cluster, tmp_path: Path
) -> None:
    run, settings = "below", {**TWO, "timeouts": {"lease": LEASE_S, "round_deadline": DEADLINE_S}}
    job = {"control": cluster.control_url, "run": run, "settings": settings}
    a = Trial(cluster.control_url, run, 0, settings=settings, model=wide_model(0))

    def revisions() -> list[int]:
        return [one["revision"] for one in cluster.get(f"/runs/{run}/rounds?limit=1000")]

    def stands_still() -> bool:
        """Of each open round nobody else's push is in, and all before it is told."""
        states = states_of(cluster.sync_address, run)
        is_alone = all([*state.arrived] == [a.replica.name] for state in states)
        made = sum(1 + state.revision for state in states)  # from revision 0 on
        return is_alone and len(revisions()) == made

    def another_comes() -> None:
        wait_until(lambda: bool(cluster.get(f"/runs/{run}")["waits_for"]), 30, "too few are there")
        wait_until(stands_still, 30, "it has pushed, and all is told")
        before = revisions()
        time.sleep(2 * DEADLINE_S)
        assert revisions() == before, "no round closes"
        with victim(tmp_path, job):
            wait_until(lambda: max(revisions()) > max(before), 30, "it goes on")
            wait_until(lambda: a.replica.revision > max(before), 30, "both do")

    with joined(a):
        with victim(tmp_path, job) as process:
            a.step(9)
            assert a.replica.revision == 2
            process.kill()
            process.wait()
        together(lambda: a.step(8), another_comes)  # the last push of who is gone may be in
        assert a.replica.stats.paused_s > DEADLINE_S
        a.replica.close(failed=True)


def test_a_long_wait_in_a_later_round_names_who_is_missing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(council, "LONG_S", 0.4)
    a, b = (Trial(cluster.control_url, "later", seed, settings=TWO) for seed in range(2))
    with joined(a, b):
        together(lambda: a.step(5), lambda: b.step(5))
        with capture_logs() as logs:

            def come_late() -> None:
                until_said(logs, "round.waits")
                b.step(4)

            together(lambda: a.step(4), come_late)
        together(a.replica.finish, b.replica.finish)
    said = {log["why"] for log in logs if log["event"] == "round.waits"}
    # A round of several fragments: of a later one the push may be in by the time it is asked.
    merges = "all have pushed, and the sync service has not merged them yet"
    missing = "replica-1 has not pushed yet"
    assert missing in said
    assert said <= {missing, merges}


@pytest.mark.long
def test_nobody_else_is_blamed_while_the_sync_service_is_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(council, "LONG_S", outage.SAY_AFTER_S - 0.5)
    logs = logs_of_an_outage(cluster, "blame")
    assert not [log for log in logs if log["event"] == "round.waits"]


def test_who_is_asked_to_leave_amid_a_wait_says_at_once_what_it_waits_for(
    cluster: Cluster,
) -> None:
    a, b = (Trial(cluster.control_url, "leaving", seed, settings=TWO) for seed in range(2))
    with capture_logs() as logs, joined(a, b):

        def asked() -> None:
            wait_until(lambda: a.replica.phase == "waiting", 30, "it has pushed")
            a.replica.request_drain()
            until_said(logs, "replica.drains")
            b.step(4).replica.finish()  # not before: the round is open while it is said

        together(lambda: a.step(4).replica.finish(), asked)
    (said,) = [log for log in logs if log["event"] == "replica.drains"]
    assert said["why"] == "its own process asked it to leave"
    assert said["so"].endswith("of its last steps, at most 20 s in all")


def test_who_joins_a_machine_that_has_too_few_cores_for_all_says_so(cluster: Cluster) -> None:
    threads = torch.get_num_threads()
    trials = [Trial(cluster.control_url, "crowded", seed, settings=ALONE) for seed in range(2)]
    torch.set_num_threads(cores() + 1)
    try:
        with capture_logs() as logs, joined(*trials):
            assert not [log for log in logs if log["event"] == "replica.threads"], "one process"
            host = {"host": socket.gethostname(), "pid": 1}
            cluster.post("/runs/crowded/replicas", {"replica": "beside", **host})
            with joined(Trial(cluster.control_url, "crowded", 2, settings=ALONE)):
                pass
    finally:
        torch.set_num_threads(threads)
    (said,) = [log for log in logs if log["event"] == "replica.threads"]
    assert "2 processes of this run on this machine share" in said["why"]
    assert said["so"].startswith("start each with its part of them: OMP_NUM_THREADS=")
