"""A joiner's learning rate grows over its first steps, where its optimizer begins anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from syncline.train.config import JobConfig
from syncline.train.loop import Trainer
from syncline.train.progress import Snapshot
from syncline.train.ranks import RankGroup
from syncline_proto.errors import ConfigError
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, Trial, joined
from syncline_testing.training import Recorder, tiny_job

EVERY = QUICK["sync_every"]


def factors(trial: Trial, steps: int) -> list[float]:
    found: list[float] = []
    for _ in range(steps):
        found.append(trial.replica.lr_factor)
        trial.step()
    return found


def test_a_joiner_without_a_state_begins_with_short_steps(cluster: Cluster) -> None:
    first = Trial(cluster.control_url, "ramp", 0, settings=QUICK, join_ramp_steps=4)
    with joined(first):
        assert factors(first, EVERY + 1) == [1.0] * (EVERY + 1), "it has begun the run"
    late = Trial(cluster.control_url, "ramp", 1, join_ramp_steps=4)
    with joined(late):
        assert late.replica.revision > 0
        assert factors(late, 5) == [0.25, 0.5, 0.75, 1.0, 1.0]
    with joined(late):
        assert factors(late, 2) == [1.0, 1.0], "its optimizer has learnt by now"
    with pytest.raises(ConfigError, match="join_ramp_steps is -1; it must be 0 or more"):
        Trial(cluster.control_url, "ramp", 2, join_ramp_steps=-1)


def test_the_trainer_goes_by_it_unless_it_resumes(
    cluster: Cluster, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCLINE_CONTROL", cluster.control_url)
    run = {"name": "ramped", "sync_every": EVERY, "token_budget": None}
    inner = {"lr": 1e-3, "schedule": "constant", "warmup_tokens": 0, "join_ramp_steps": 4}
    job = tiny_job(data, steps=1, run=run, optimizer=inner, checkpoint={"folder": tmp_path})
    assert rates(job, "first") == [1e-3] * 6
    assert rates(job, "late") == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])
    assert rates(job, "late", resume=True) == [1e-3] * 6


def rates(job: JobConfig, name: str, *, resume: bool = False) -> list[float]:
    """The learning rates of six inner steps, after which the replica leaves."""
    recorder = Recorder()
    trainer = Trainer(job, RankGroup(), recorder, replica=name, resume=resume)

    def update(now: Snapshot) -> None:
        recorder.snapshots.append(now)
        if len(recorder.snapshots) == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    recorder.update = update
    assert trainer.run().reason == "drained"
    return [now.lr for now in recorder.snapshots]
