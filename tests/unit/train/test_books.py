"""What a training tells of itself counts the time in which it trained, and no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from syncline import Replica
from syncline.train import books
from syncline.train.books import Books
from syncline.train.evaluate import HeldOut
from syncline.train.ranks import RankGroup
from syncline.train.step import StepReport
from syncline_testing.training import Recorder, tiny_job

STEP = StepReport(loss=2.0, grad_norm=1.0, lr=1e-3, taken=True)


def test_no_pause_slows_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(books, "time", SimpleNamespace(monotonic=lambda: now))
    model = nn.Linear(1, 1)
    replica = Replica(model, torch.optim.SGD(model.parameters()))
    recorder = Recorder()
    job = tiny_job(tmp_path, steps=1)
    kept = Books(job, "alone", bytes_per_token=1.0, ranks=RankGroup(), listener=recorder)
    held_out = HeldOut(loss=5.0, bits_per_byte=7.0)
    kept.open(held_out, replica, parameters=2, run_tokens=0, budget=None)
    for seconds, paused_s in ((1.0, 0.0), (61.0, 60.0), (1.0, 0.0), (4.0, 2.0)):
        now += seconds
        replica._session.tally.paused_s += paused_s
        kept.note(STEP, 100)
        kept.tell_if_due(replica, 100)
    assert [told.tokens_per_second for told in recorder.snapshots] == [100.0, 100.0, 100.0, 50.0]
    assert [told.seconds for told in recorder.snapshots] == [1.0, 2.0, 3.0, 5.0]
