"""A model that has gone wrong takes up what its run has."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from syncline.train.loop import Trainer
from syncline.train.progress import Snapshot
from syncline.train.ranks import RankGroup
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, STEP_TOKENS, Trial, joined, published
from syncline_testing.training import Recorder, tiny_job

EVERY = QUICK["sync_every"]


@pytest.mark.long
@pytest.mark.parametrize("overlap", [0, 3])
def test_steps_that_were_not_pushed_are_forgotten_and_what_was_is_not(
    cluster: Cluster, overlap: int
) -> None:
    run = f"back-{overlap}"
    how = {**QUICK, "sync_every": 20, "overlap_steps": overlap}
    trial = Trial(cluster.control_url, run, 0, settings=how, join_ramp_steps=2)
    with joined(trial):
        trial.step(22)
        for parameter in trial.model.parameters():
            parameter.data.fill_(float("nan"))
        assert trial.replica.go_back()
        values, revision = published(cluster.sync_address, run)
        assert trial.replica.revision == revision == 1, "what was pushed counts"
        for name, value in trial.parameters().items():
            assert np.array_equal(value.numpy(), values[name]), name
        assert not trial.optimizer.state and trial.replica.lr_factor == 0.5
        trial.step(20)
        trial.replica.finish()
        assert trial.replica.revision == 2
        assert trial.replica.committed_tokens == 40 * STEP_TOKENS, "two steps are nobody's"
        assert all(bool(p.isfinite().all()) for p in trial.model.parameters())


def test_there_is_nothing_to_go_back_to_without_a_run_or_before_its_first_revision(
    cluster: Cluster,
) -> None:
    alone = Trial(None, "any", 0)
    warm = Trial(cluster.control_url, "warm", 0, settings={**QUICK, "warmup_steps": 8})
    with joined(alone, warm):
        for trial in (alone, warm):
            before = trial.step().parameters()
            assert not trial.replica.go_back()
            assert all(torch.equal(before[name], p) for name, p in trial.parameters().items())


@pytest.mark.parametrize("name", ["adamw", "wsam"])
def test_the_trainer_goes_back_after_three_losses_that_are_not_finite(
    cluster: Cluster, data: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("SYNCLINE_CONTROL", cluster.control_url)
    run = {"name": f"spoilt-{name}", "sync_every": EVERY, "token_budget": None}
    inner = {"name": name, "schedule": "constant", "warmup_tokens": 0}
    trainer = Trainer(tiny_job(data, steps=1, run=run, optimizer=inner), RankGroup(), Recorder())
    spoilt = {EVERY + 2}

    def spoil(now: Snapshot) -> None:
        if now.inner_step in spoilt:
            spoilt.clear()
            for parameter in trainer.model.parameters():
                parameter.data.fill_(float("nan"))
        elif now.revision == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(trainer._books._listener, "update", spoil)
    with capture_logs() as logs:
        ending = trainer.run()
    assert ending.skipped_steps == 3 and ending.reason == "drained"
    (said,) = [log for log in logs if log["event"] == "replica.goes_back"]
    assert said["revision"] == 1
    assert all(bool(p.isfinite().all()) for p in trainer.model.parameters())
