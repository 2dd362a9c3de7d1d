"""Replicas at work whose sync service comes back with less than they have seen, and go on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_sync.files import SEAL
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined, together
from syncline_testing.waiting import wait_until

RUN = "went-back"
LAST = 3
"""The fragment whose tokens are the run's; one of four."""
BUDGET = 24 * STEP_TOKENS
ROUND = 2 * QUICK["sync_every"] * STEP_TOKENS
SETTINGS: dict[str, Any] = {
    **QUICK,
    "min_replicas": 2,
    "expected_replicas": 2,
    "token_budget": BUDGET,
    "durability": "async",
    "timeouts": {"lease": 10.0, "round_deadline": 100.0},
}
"""Whoever waits for the deadline of a round fails the test."""


def status(cluster: Cluster) -> pb.GetRunStatusResponse:
    with grpc.insecure_channel(cluster.sync_address) as channel:
        stub = sync_pb2_grpc.SyncServiceStub(channel)
        return stub.GetRunStatus(pb.GetRunStatusRequest(run=RUN), timeout=10)


def told(cluster: Cluster) -> list[str]:
    """The kinds of the run's events, so far."""
    return [line["kind"] for line in cluster.get(f"/events?run={RUN}")]


def folder_of(store: Path, fragment: int) -> Path:
    return store / "runs" / RUN / f"{fragment:05d}"


def are_on_disk(store: Path, revision: int) -> Callable[[], bool]:
    """Whether the heads of all fragments name this revision as the newest."""

    def are() -> bool:
        heads = [folder_of(store, f) / "head.json" for f in range(LAST + 1)]
        first = f'"files": [{{"file": "r{revision:08d}'
        return all(head.exists() and first in SEAL.open(head.read_bytes()) for head in heads)

    return are


def lost(cluster: Cluster, store: Path, copies: Path) -> None:
    """A kill came before revision 2 of two of the fragments was on the disk."""
    for fragment in (0, LAST):
        folder = folder_of(store, fragment)
        assert folder.with_name(folder.name + ".behind").exists()
        shutil.rmtree(folder)
        shutil.copytree(copies / folder.name, folder)
    cluster.sync.start()


def fallen_back(cluster: Cluster, store: Path, copies: Path) -> None:
    """Revision 2 of one fragment is damaged, and the operator gives the word: all go back."""
    path = folder_of(store, 1) / "r00000002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    cluster.sync.extend("--fall-back", f"{RUN}@2")
    cluster.sync.start()


@pytest.mark.long
@pytest.mark.parametrize(
    ("comes_back", "event", "back_to"),
    [(lost, "run.went_back", [1, 2, 2, 1]), (fallen_back, "run.fell_back", [1, 1, 1, 1])],
    ids=["lost", "fallen back"],
)
def test_replicas_move_onto_what_is_there_and_the_run_ends_well(
    tmp_path: Path,
    comes_back: Callable[[Cluster, Path, Path], None],
    event: str,
    back_to: list[int],
) -> None:
    store, copies = tmp_path / "store", tmp_path / "copies"
    with Cluster(tmp_path) as cluster:
        a, b = (Trial(cluster.control_url, RUN, seed, settings=SETTINGS) for seed in range(2))
        with joined(a, b):
            together(lambda: a.step(5), lambda: b.step(5))
            wait_until(are_on_disk(store, 1), 30, "revision 1 is on the disk")
            shutil.copytree(store / "runs" / RUN, copies)
            together(lambda: a.step(4), lambda: b.step(4))
            assert a.replica.revision == b.replica.revision == 2
            assert a.replica.committed_tokens == 2 * ROUND
            wait_until(are_on_disk(store, 2), 30, "revision 2 is on the disk")
            cluster.sync.kill()
            comes_back(cluster, store, copies)
            states = status(cluster)
            assert [state.revision for state in states.fragments] == back_to
            together(lambda: a.step(40), lambda: b.step(40))
            assert a.replica.done and b.replica.done
            theirs = b.parameters()
            assert all(torch.equal(theirs[name], p) for name, p in a.parameters().items())
            # A round was lost, and nothing of it has come back as if it had not been.
            steps = a.replica.inner_step + b.replica.inner_step
            committed = a.replica.committed_tokens
            assert BUDGET <= committed <= steps * STEP_TOKENS - ROUND
            assert b.replica.committed_tokens == committed
        assert cluster.get(f"/runs/{RUN}")["state"] == "finished"
        wait_until(lambda: event in told(cluster), 20, f"{event} is told")
        assert status(cluster).epoch >= 2
