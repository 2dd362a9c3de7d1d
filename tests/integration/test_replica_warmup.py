"""The synchronous phase: everybody steps with the mean gradient, and ends with equal parameters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from syncline_testing.cluster import Cluster, wait_until
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

STEPS = 5
WARM: dict[str, Any] = {**QUICK, "min_replicas": 2, "warmup_steps": STEPS}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_it_equals_one_process_with_the_mean_gradient(cluster: Cluster) -> None:
    a, b = (Trial(cluster.control_url, "warm", seed, settings=WARM) for seed in range(2))
    with joined(a, b):
        assert a.replica.phase == b.replica.phase == "warm-up"
        single = TinyModel()
        with torch.no_grad():
            for name, value in a.parameters().items():
                single.get_parameter(name).copy_(value)
        optimizer = torch.optim.AdamW(single.parameters(), lr=1e-2)
        for step in range(STEPS):
            for seed in range(2):
                (loss_of(single, batch(seed, step)) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        together(lambda: a.step(STEPS), lambda: b.step(STEPS))
        together(a.replica.finish, b.replica.finish)
        values, revision = published(cluster.sync_address, "warm")
        assert revision == 1
        for name, value in a.parameters().items():
            assert torch.equal(value, b.parameters()[name])
            assert torch.equal(value, torch.from_numpy(values[name]))
            torch.testing.assert_close(value, single.get_parameter(name), rtol=1e-5, atol=1e-6)
        assert a.replica.phase == "training"
        assert a.replica.committed_tokens == 2 * STEPS * STEP_TOKENS
        together(lambda: a.step(4), lambda: b.step(4))
        together(a.replica.finish, b.replica.finish)
        assert a.replica.revision == 2
        assert a.replica.run_tokens == 2 * (STEPS + 4) * STEP_TOKENS


def test_a_joiner_waits_for_its_end(cluster: Cluster) -> None:
    settings = {**WARM, "min_replicas": 1}
    first, second = (Trial(cluster.control_url, "wait", s, settings=settings) for s in range(2))
    with joined(first):
        first.step(2)
        joining = threading.Thread(target=second.replica.start)
        joining.start()
        wait_until(lambda: len(cluster.get("/runs/wait/replicas")) == 2, 20, "it has a lease")
        first.step(3)
        first.replica.finish()
        joining.join(30)
        try:
            assert second.replica.phase == "training"
            assert second.replica.revision == 1
            values = first.parameters()
            assert all(torch.equal(values[name], p) for name, p in second.parameters().items())
            assert second.replica.committed_tokens == STEPS * STEP_TOKENS
        finally:
            second.replica.close()


def test_a_parameter_without_a_gradient_gets_the_mean_of_the_others(cluster: Cluster) -> None:
    a, b = (Trial(cluster.control_url, "sparse", seed, settings=WARM) for seed in range(2))
    with joined(a, b):

        def step(trial: Trial, frozen: bool) -> None:
            loss_of(trial.model, batch(trial.seed, 0)).backward()
            if frozen:
                trial.model.get_parameter("blocks.0.up.bias").grad = None
            trial.optimizer.step()

        together(lambda: step(a, True), lambda: step(b, False))
        values = b.parameters()
        assert all(torch.equal(values[name], p) for name, p in a.parameters().items())
        a.optimizer.zero_grad()
        b.optimizer.zero_grad()
        together(lambda: a.step(STEPS - 1), lambda: b.step(STEPS - 1))
