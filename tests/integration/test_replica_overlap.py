"""Training that goes on while rounds are under way: nothing of it is lost, and all agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import (
    QUICK,
    STEP_TOKENS,
    Trial,
    joined,
)

ALONE = {**QUICK, "strategy": "local-sgd"}
ROUNDS, EVERY = 4, 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def descent(parameters: Any) -> torch.optim.Optimizer:
    """SGD: a bit that is rounded away stays a bit."""
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.5)


def uninterrupted(steps: int) -> dict[str, Tensor]:
    """What training alone comes to, with nothing of ours in it."""
    trial = Trial(None, "alone", 0, optimizer=descent)
    with joined(trial):
        return trial.step(steps).parameters()


@pytest.mark.parametrize("groups", [1, 2, 10])
@pytest.mark.parametrize("overlap", [0, 1, 3, EVERY])
def test_one_replica_trains_as_if_nothing_had_been(
    cluster: Cluster, overlap: int, groups: int
) -> None:
    """With outer lr 1 and fp32 both ways, within an ulp of each round."""
    how = {**ALONE, "overlap_steps": overlap, "fragment_groups": groups}
    trial = Trial(
        cluster.control_url, f"alone-{overlap}-{groups}", 0, settings=how, optimizer=descent
    )
    with joined(trial):
        trial.step(ROUNDS * EVERY)
        trial.replica.finish()
        expected = uninterrupted(ROUNDS * EVERY)
        # A bit of the largest parameter reaches the gradients of all others.
        ulp = max(float(np.spacing(np.float32(value.abs().max()))) for value in expected.values())
        for name, value in trial.parameters().items():
            assert float((value - expected[name]).abs().max()) <= ROUNDS * ulp, name
        assert trial.replica.stats.rounds == ROUNDS
        assert trial.replica.committed_tokens == ROUNDS * EVERY * STEP_TOKENS
