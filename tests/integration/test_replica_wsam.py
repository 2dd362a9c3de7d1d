"""An optimizer that moves the parameters between two gradients, in a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from syncline.optim import WSAM
from syncline_proto.errors import ConfigError
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import (
    QUICK,
    STEP_TOKENS,
    TinyModel,
    Trial,
    batch,
    joined,
    loss_of,
    published,
    together,
)

EVERY = QUICK["sync_every"]


def sharpness_aware(parameters: object) -> WSAM:
    return WSAM(torch.optim.SGD(parameters, lr=0.2, momentum=0.5))  # pyright: ignore[reportArgumentType]


def train(trial: Trial, steps: int) -> None:
    optimizer = trial.optimizer
    assert isinstance(optimizer, WSAM)
    for _ in range(steps):
        trial.replica.count_tokens(STEP_TOKENS)
        tokens = batch(trial.seed, trial.replica.inner_step)
        loss_of(trial.model, tokens).backward()
        optimizer.perturb()
        loss_of(trial.model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("overlap", [0, 2])
def test_one_replica_trains_as_if_nothing_had_been(cluster: Cluster, overlap: int) -> None:
    how = {**QUICK, "strategy": "local-sgd", "overlap_steps": overlap}
    run = f"wsam-{overlap}"
    alone = Trial(None, "alone", 0, optimizer=sharpness_aware)
    with joined(alone):
        train(alone, 3 * EVERY)
        expected = alone.parameters()
    trial = Trial(cluster.control_url, run, 0, settings=how, optimizer=sharpness_aware)
    with joined(trial):
        train(trial, 3 * EVERY)
        trial.replica.finish()
        assert trial.replica.stats.rounds == 3
        ulp = max(float(np.spacing(np.float32(value.abs().max()))) for value in expected.values())
        for name, value in trial.parameters().items():
            assert float((value - expected[name]).abs().max()) <= 3 * ulp, name


def test_two_replicas_hold_the_published_value_and_nothing_perturbed(cluster: Cluster) -> None:
    how = {**QUICK, "min_replicas": 2}
    a, b = (
        Trial(cluster.control_url, "wsam-two", seed, settings=how, optimizer=sharpness_aware)
        for seed in range(2)
    )
    with joined(a, b):
        together(lambda: train(a, 2 * EVERY), lambda: train(b, 2 * EVERY))
        together(a.replica.finish, b.replica.finish)
        values, revision = published(cluster.sync_address, "wsam-two")
        assert revision == 2
        for trial in (a, b):
            for name, value in trial.parameters().items():
                assert np.array_equal(value.numpy(), values[name]), name


def test_it_cannot_take_part_in_a_synchronous_phase(cluster: Cluster) -> None:
    how = {**QUICK, "warmup_steps": 2}
    model = TinyModel()
    trial = Trial(
        cluster.control_url, "wsam-warm", 0, settings=how, model=model, optimizer=sharpness_aware
    )
    with pytest.raises(ConfigError, match="without warmup_steps"):
        trial.replica.start()
    assert cluster.http.get("/runs/wsam-warm").status_code == 404, "no run is created for it"
