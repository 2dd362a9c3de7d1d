"""Replicas of a run whose rounds do not wait: each goes on from its own push, at its own pace."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from syncline.control import ControlClient
from syncline.launch.checkpoints import copiers, restore, save
from syncline.launch.client import OperatorClient
from syncline.train.observe import newest_cut
from syncline_testing.by_hand import ByHand
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined, together
from syncline_testing.waiting import wait_until

FRAGMENTS = range(4)
SETTINGS: dict[str, Any] = {
    **QUICK,
    "strategy": "async",
    "sync_seconds": None,
    "outer": {"lr": 1.0, "momentum": 0.0, "clip": None},
    "penalty": {"enabled": False, "step_power": 0.0},
    "timeouts": {"lease": 30.0, "round_deadline": 60.0},
}


def committed_told(cluster: Cluster, run: str) -> int:
    return cluster.get(f"/runs/{run}")["committed_tokens"]


def test_each_goes_on_from_its_own_push_however_many_others_make(cluster: Cluster) -> None:
    trial = Trial(cluster.control_url, "own", 1, settings={**SETTINGS, "window": 1})
    trial.replica.start()
    with ByHand(cluster, "own") as other:
        for expected in (1, 4, 7):
            trial.step(4 if expected == 1 else 3)  # pushes, and goes on with the next
            trial.step(1)
            assert trial.replica.revision == expected
            for fragment, more in itertools.product(FRAGMENTS, range(2)):
                answer = other.push(fragment, expected + more)
                assert (answer.result_revision, answer.counts_in) == (expected + more + 1, 0)
        trial.replica.close()

    def closed_by() -> set[str]:
        rounds = cluster.get("/runs/own/rounds")
        return {r["closed_by"] for r in rounds if r["kind"] == "pseudo-gradient"}

    wait_until(lambda: bool(closed_by()), 20, "rounds are told")
    assert closed_by() == {"push"}


def test_alone_with_plain_averaging_it_is_training_without_interruption(cluster: Cluster) -> None:
    alone = Trial(None, "any", 3)
    trial = Trial(cluster.control_url, "plain", 3, settings={**SETTINGS, "window": 1})
    with joined(alone, trial):
        for one in (alone, trial):
            one.step(13)
        theirs = alone.parameters()
        for name, value in trial.parameters().items():
            assert torch.allclose(value, theirs[name], rtol=0, atol=1e-5), name


@pytest.mark.parametrize("groups", [1, 3])
def test_replicas_of_different_pace_end_with_the_budget_and_all_that_counts_is_counted(
    cluster: Cluster, groups: int
) -> None:
    run = f"pace-{groups}"
    how = {**SETTINGS, "token_budget": 60 * STEP_TOKENS, "fragment_groups": groups}
    quick, slow = (Trial(cluster.control_url, run, seed, settings=how) for seed in (1, 2))
    with joined(quick, slow):
        slow.step(5)
        together(lambda: quick.step(200), lambda: slow.step(200))
        assert quick.replica.done and slow.replica.done
        committed = [one.replica.committed_tokens for one in (quick, slow)]
        assert max(committed) >= 60 * STEP_TOKENS
    assert cluster.get(f"/runs/{run}")["state"] == "finished"
    wait_until(lambda: committed_told(cluster, run) >= max(committed), 20, "all is told")
    told = cluster.get(f"/runs/{run}/rounds")
    last = [r for r in told if r["fragment"] == len(FRAGMENTS) - 1]
    pushes = [c for r in last for c in r["contributions"] if r["kind"] == "pseudo-gradient"]
    assert {c["replica"] for c in pushes} == {quick.replica.name, slow.replica.name}
    assert sum(c["tokens"] for c in pushes) == max(r["committed_tokens"] for r in last)


def test_a_cut_is_the_newest_of_each_fragment_and_a_run_begins_from_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    trial = Trial(cluster.control_url, "cut", 1, settings=SETTINGS)
    trial.replica.start()
    with ByHand(cluster, "cut") as other:
        trial.step(5)
        for base in (1, 2, 3):  # no other fragment has any of these revisions
            other.push(0, base)
            other.published(0, base + 1)
        with OperatorClient(cluster.control_url, None) as client, copiers(client, None) as services:
            view = client.run("cut")
            _, manifest = save(view, services, str(tmp_path), None, lambda *_: None)
            assert [entry.revision for entry in manifest.entries] == [4, 1, 1, 1]
            assert manifest.revision == 1
            url = f"{tmp_path}/cut-r1"
            again = restore(client, services, url, "again", {}, lambda *_: None)
        with closing(ControlClient(cluster.control_url, None, timeout_s=10.0)) as control:
            ours, theirs = (newest_cut(one, control, None) for one in (view, again))
        for name, value in ours.tensors.items():
            assert np.array_equal(value, theirs.tensors[name]), name
        trial.replica.close()
