"""A replica of two ranks (FSDP2 over gloo) and one of a single rank, in one run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from syncline.interrupts import INTERRUPTED
from syncline.layout import outline
from syncline.ranks import Ranks
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import (
    QUICK,
    STEP_TOKENS,
    TinyModel,
    Trial,
    arrived,
    batch,
    joined,
    loss_of,
    published,
    ranks,
)
from syncline_testing.waiting import wait_until

TWO = {**QUICK, "min_replicas": 2}
LEASE_S = 3.0
FRAGMENTS = 4


def job(cluster: Cluster, run: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    return {
        "control": cluster.control_url,
        "run": run,
        "name": f"wide-{run}",
        "seed": 3,
        "settings": settings,
        "steps": steps,
        "probe": 4,
    }


@pytest.mark.parametrize(
    ("run", "more"),
    [
        ("plain", {"codec": {"up": "bf16", "down": "bf16"}}),
        ("sparse", {"codec": {"up": "topk", "down": "int8"}}),
        ("warm", {"warmup_steps": 3, "token_budget": (3 * 3 + 8 * 3) * STEP_TOKENS}),
    ],
)
def test_replicas_of_different_size_agree_bit_for_bit(
    cluster: Cluster, tmp_path: Path, run: str, more: dict[str, Any]
) -> None:
    settings = TWO | more
    with ranks(tmp_path, job(cluster, run, settings, 11), 2) as processes:
        trial = Trial(cluster.control_url, run, 5, settings=settings)
        with joined(trial):
            trial.step(4)
            merged = loss_of(trial.model, batch(0, 0)).item()
            trial.step(7)
            trial.replica.finish()
        codes = [process.wait(60) for process in processes]
    logs = [log.read_text() for log in sorted(tmp_path.glob("*.log"))]
    assert codes == [0, 0], logs
    for event in ("replica.joined", "run.finished")[: 1 + trial.replica.done]:
        assert [event in log for log in logs] == [True, False], "rank 0 says it for all"
    assert f"{cluster.control_url}/#{run}" in logs[0], "where the run's page is"
    wide = load_file(tmp_path / f"wide-{run}.safetensors")
    counted = json.loads((tmp_path / f"wide-{run}.out.json").read_text())
    values, revision = published(cluster.sync_address, run)
    assert counted["revision"] == trial.replica.revision == revision == 3
    assert counted["committed"] == trial.replica.committed_tokens == 11 * 3 * STEP_TOKENS
    assert counted["stale"] == 0
    assert trial.replica.done == ("token_budget" in more)
    own = outline(TinyModel(), Ranks()).cut().layout.fingerprint()
    assert own == cluster_fingerprint(cluster, run)
    before, after = counted["probe"]
    if run == "plain":  # a round ends there; in the other run it is the middle of one
        assert before != after == pytest.approx(merged, rel=1e-6)
    for name, value in trial.parameters().items():
        assert np.array_equal(value.numpy(), values[name])
        assert np.array_equal(wide[name], values[name])


@pytest.mark.long
def test_more_fragments_than_send_at_a_time_outlive_the_service(tmp_path: Path) -> None:
    """Killed when every push is in a round that waits, so that all are to be sent again."""
    name, fragments = "wide-many", 12
    with Cluster(tmp_path) as cluster:
        settings = {**TWO, "timeouts": {"lease": 20.0, "round_deadline": 60.0}}
        wide = job(cluster, "many", settings, 5) | {"blocks": [10, 10]}
        trial = Trial(cluster.control_url, "many", 5, settings=settings, model=TinyModel(5, 10))
        with ranks(tmp_path, wide, 2) as processes:
            with joined(trial):
                everyone = [{name}] * fragments
                wait_until(lambda: arrived(cluster.sync_address, "many") == everyone, 60, "all in")
                cluster.sync.kill()
                cluster.sync.start()
                trial.step(5)
                trial.replica.finish()
            codes = [process.wait(60) for process in processes]
        logs = [log.read_text() for log in sorted(tmp_path.glob(f"{name}-*.log"))]
        assert codes == [0, 0], "".join(logs)
        again = [line for line in logs[0].splitlines() if "push.again" in line]
        assert again and all("sync service" in line for line in again), "each says why"
        saved = load_file(tmp_path / f"{name}.safetensors")
        values, revision = published(cluster.sync_address, "many")
        assert revision >= 1
        assert all(np.array_equal(saved[key], value) for key, value in values.items())


def test_ranks_with_different_models_are_told_so_on_every_rank(
    cluster: Cluster, tmp_path: Path
) -> None:
    with ranks(tmp_path, job(cluster, "unlike", QUICK, 5) | {"blocks": [2, 3]}, 2) as processes:
        codes = [process.wait(60) for process in processes]
    logs = [(tmp_path / f"wide-unlike-{rank}.log").read_text() for rank in range(2)]
    assert codes == [1, 1], logs
    assert all("LayoutMismatch: Rank 1 of this replica has another model" in log for log in logs)
    assert cluster.http.get("/runs/unlike").status_code == 404


@pytest.mark.parametrize("warmup_steps", [0, 3])
def test_ranks_that_nothing_averages_are_refused_at_the_first_step(
    cluster: Cluster, tmp_path: Path, warmup_steps: int
) -> None:
    run, settings = f"apart-{warmup_steps}", QUICK | {"warmup_steps": warmup_steps}
    with ranks(tmp_path, job(cluster, run, settings, 5) | {"sharded": False}, 2) as processes:
        codes = [process.wait(60) for process in processes]
    logs = [(tmp_path / f"wide-{run}-{rank}.log").read_text() for rank in range(2)]
    assert codes == [1, 1], logs
    assert all("ConfigError: The ranks of this replica have different" in log for log in logs)
    (view,) = cluster.get(f"/runs/{run}/replicas")
    assert view["state"] == "left"


def test_ctrl_c_ends_a_replica_that_waits_for_a_round(cluster: Cluster, tmp_path: Path) -> None:
    """Nobody else comes, so the round would not close before its patience is up."""
    with ranks(tmp_path, job(cluster, "alone", TWO, 100), 2) as processes:
        wait_until(lambda: _phase(cluster, "alone") == "waiting", 60, "it waits for the round")
        for process in processes:
            process.send_signal(signal.SIGINT)
        codes = [process.wait(60) for process in processes]
    assert codes == [INTERRUPTED] * 2
    (view,) = cluster.get("/runs/alone/replicas")
    assert view["state"] == "left"
    logs = [log.read_text() for log in sorted(tmp_path.glob("*.log"))]
    assert "KeyboardInterrupt" in logs[0]


@pytest.mark.parametrize("dead", [1, 0])
def test_when_a_rank_dies_the_other_ends_in_a_sentence(
    cluster: Cluster, tmp_path: Path, dead: int
) -> None:
    run, left = f"dead-{dead}", 1 - dead
    with ranks(tmp_path, job(cluster, run, TWO, 100), 2) as processes:
        wait_until(lambda: _phase(cluster, run) == "waiting", 60, "it waits for the round")
        processes[dead].kill()
        assert processes[left].wait(20) != 0
    said = (tmp_path / f"wide-{run}-{left}.log").read_text()
    assert "Another rank of this replica is gone" in said


@pytest.mark.long
def test_a_killed_replica_holds_up_a_round_until_its_lease_is_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    # Intervals long enough to be halved: the other one's steps are many times faster than ours.
    timeouts = {"lease": LEASE_S, "round_deadline": 100.0}
    settings = {**QUICK, "sync_every": 16, "timeouts": timeouts}
    survivor = Trial(cluster.control_url, "killed", 5, settings=settings)
    with (
        joined(survivor),
        ranks(tmp_path, job(cluster, "killed", settings, 1_000_000), 1) as processes,
    ):

        def are_in_one_round() -> bool:
            survivor.step(16)
            survivor.replica.finish()
            # Two whole rounds: a newcomer is in time for some fragments before it is for all.
            newest = cluster.get(f"/runs/killed/rounds?limit={2 * FRAGMENTS}")
            return [len(r["contributions"]) for r in newest] == [2] * 2 * FRAGMENTS

        wait_until(are_in_one_round, 60, "both take part")
        processes[0].kill()
        revision = survivor.replica.revision
        # What it pushed before its end counts; so the first round that misses it may be the second.
        for _ in range(2):
            survivor.step(16)
            survivor.replica.finish()
        assert survivor.replica.revision == revision + 2

        def lost() -> list[dict[str, Any]]:
            return [r for r in cluster.get("/runs/killed/rounds") if r["closed_by"] == "loss"]

        wait_until(lambda: bool(lost()), 20, "the round was closed by the loss")
        # By the service's own clock.
        assert all(r["seconds"] < timeouts["round_deadline"] for r in lost())


def _phase(cluster: Cluster, run: str) -> str:
    """Of the run's only replica; nothing before there is one."""
    answer = cluster.http.get(f"/runs/{run}/replicas")
    return answer.json()[0]["progress"]["phase"] if answer.is_success and answer.json() else ""


def cluster_fingerprint(cluster: Cluster, run: str) -> str:
    """Of the run's layout, to which the replica of two ranks was first or second to agree."""
    with grpc.insecure_channel(cluster.sync_address) as channel:
        stub = sync_pb2_grpc.SyncServiceStub(channel)
        return stub.GetRunStatus(pb.GetRunStatusRequest(run=run), timeout=10).fingerprint
