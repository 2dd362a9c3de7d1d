"""What a training tells of itself counts the time in which it trained, and no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from syncline import Replica
from syncline.tally import Tally
from syncline.train import books
from syncline.train.books import Books
from syncline.train.evaluate import HeldOut
from syncline.train.ranks import RankGroup
from syncline.train.step import StepReport
from syncline_testing.training import Recorder, tiny_job

STEP = StepReport(loss=2.0, grad_norm=1.0, lr=1e-3, taken=True)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def replica() -> Replica:
    model = nn.Linear(1, 1)
    return Replica(model, torch.optim.SGD(model.parameters()))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """``now`` is what the books take the time to be."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(books, "time", clock)
    return clock


@pytest.fixture
def kept(tmp_path: Path, recorder: Recorder, replica: Replica, clock: SimpleNamespace) -> Books:
    job = tiny_job(tmp_path, steps=1)
    kept = Books(job, "alone", bytes_per_token=1.0, ranks=RankGroup(), listener=recorder)
    held_out = HeldOut(loss=5.0, bits_per_byte=7.0)
    kept.open(held_out, replica, parameters=2, run_tokens=0, budget=None)
    return kept


def test_no_pause_slows_the_rate(
    kept: Books, recorder: Recorder, replica: Replica, clock: SimpleNamespace
) -> None:
    for seconds, paused_s in ((1.0, 0.0), (61.0, 60.0), (1.0, 0.0), (4.0, 2.0)):
        clock.now += seconds
        replica._session.tally.paused_s += paused_s
        kept.note(STEP, 100)
        kept.tell_if_due(replica, 100)
    assert [told.tokens_per_second for told in recorder.snapshots] == [100.0, 100.0, 100.0, 50.0]
    assert [told.seconds for told in recorder.snapshots] == [1.0, 2.0, 3.0, 5.0]


def test_a_life_that_is_over_stays_in_the_books(
    kept: Books, recorder: Recorder, replica: Replica, clock: SimpleNamespace
) -> None:
    for life in range(3):
        tally = replica._alone.tally = Tally(paused_s=2.0, exposed_s=1.0, stale=1, aged=2)
        clock.now += 6.0
        kept.note(STEP, 100)
        kept.tell_if_due(replica, 100)
        tally.paused_s += 3.0  # before it has lost its lease
        kept.note_life(replica)
        clock.now += 3.0 + life  # so long it takes to join again
    told = recorder.snapshots
    assert [one.seconds for one in told] == [4.0, 8.0, 13.0]
    assert [one.tokens_per_second for one in told] == [25.0, 25.0, 20.0]
    assert [one.exposed_sync_s for one in told] == [1.0, 2.0, 3.0]
    assert [one.exposed_sync_share for one in told] == [1 / 4, 2 / 8, 3 / 13]
    assert [one.stale for one in told] == [1, 2, 3]
    assert [one.aged for one in told] == [2, 4, 6]
