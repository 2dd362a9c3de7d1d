"""What is drawn for TensorBoard is drawn for Weights & Biases, too, where a job asks for it."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from syncline.train import board
from syncline.train.board import Board
from syncline_proto.errors import ConfigError
from syncline_testing.training import tiny_job
from syncline_testing.views import NOW
from syncline_testing.waiting import wait_until

SHOWN = {
    "tokens": 400_000,
    "train/loss": 2.5,
    "train/bits_per_byte": 3.6,
    "train/grad_norm": 1.25,
    "train/lr": 1e-3,
    "speed/tokens_per_second": 1000.0,
    "speed/mfu": 0.412,
    "sync/revision": 3,
    "sync/exposed_share": 0.1,
    "sync/exposed_seconds": 1.5,
    "sync/bytes_up": 12_345_678,
    "sync/bytes_down": 1_234,
    "sync/stale_pushes": 2,
    "sync/aged_pushes": 4,
    "sync/last_age": 1,
}
"""All that is drawn of ``SEEN``; no two values are the same."""

SEEN = replace(NOW, grad_norm=1.25, exposed_sync_s=1.5, aged=4)


class Theirs:
    """As much of Weights & Biases as is used."""

    Error = type("Error", (Exception,), {})

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.logged: list[dict[str, float]] = []
        self.steps: list[tuple[str, str]] = []
        self.is_finished = False

    def init(self, **given: Any) -> Theirs:
        if given["project"] == "nobody's":
            raise self.Error("permission\n denied")
        self.given = given
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.steps.append((name, step_metric))

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.is_finished = True


def test_both_boards_get_the_same_under_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, drawn = Theirs(), []
    monkeypatch.setitem(sys.modules, "wandb", theirs)
    tensorboard = board.Writer(lambda tokens, values: drawn.append((tokens, values)), lambda: None)
    monkeypatch.setattr(board, "_tensorboard", lambda folder: tensorboard)
    log = {"wandb": "ours", "tensorboard": tmp_path}
    both = Board(tiny_job(tmp_path, steps=1, log=log), "replica-0")
    both.snapshot(SEEN)
    both.held_out("merged", 500_000, 2.0, 3.0)
    both.snapshot(replace(SEEN, tokens=600_000, bits_per_byte=math.nan))
    both.held_out("held-out", 600_000, 2.0, math.nan)
    both.close()
    assert [{"tokens": tokens, **values} for tokens, values in drawn] == theirs.logged
    first, last, *uncounted = theirs.logged
    assert first == SHOWN
    assert uncounted[0].keys() == first.keys() - {"train/bits_per_byte"}
    assert uncounted[1] == {"tokens": 600_000, "held-out/loss": 2.0}
    assert last == {"tokens": 500_000, "merged/loss": 2.0, "merged/bits_per_byte": 3.0}
    assert theirs.steps == [("*", "tokens")] and theirs.is_finished
    assert (theirs.given["project"], theirs.given["group"]) == ("ours", "tiny")
    assert theirs.given["name"] == "tiny/replica-0"
    assert theirs.given["config"]["train"]["micro_batch"] == 4


def test_the_files_of_tensorboard_hold_all_of_it(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    drawing = Board(tiny_job(tmp_path, steps=1, log={"tensorboard": tmp_path / "drawn"}), "alone")
    drawing.snapshot(SEEN)
    drawing.close()
    read = EventAccumulator(str(tmp_path / "drawn" / "alone")).Reload()
    points = {name: read.Scalars(name) for name in read.Tags()["scalars"]}
    assert {(point.step, len(points)) for (point,) in points.values()} == {(SEEN.tokens, 14)}
    found = {name: point.value for name, (point,) in points.items()}
    assert {"tokens": SEEN.tokens} | found == pytest.approx(SHOWN, rel=1e-6)


def test_who_lacks_it_or_is_refused_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny_job(tmp_path, steps=1, log={"wandb": "nobody's"})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'syncline\[wandb\]'"):
        Board(job, "alone")
    monkeypatch.setitem(sys.modules, "wandb", Theirs())
    with pytest.raises(ConfigError, match="^log.wandb: permission denied$"):
        Board(job, "alone")


def test_a_job_that_does_not_ask_imports_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace())
    none = Board(tiny_job(tmp_path, steps=1), "alone")
    none.snapshot(NOW)
    none.close()


def test_the_real_one_takes_it_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    offline = Board(tiny_job(tmp_path, steps=1, log={"wandb": "ours"}), "alone")
    offline.snapshot(SEEN)
    offline.close()
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")

    def holds_all() -> bool:
        kept = written.read_bytes()
        return all(name.encode() in kept for name in SHOWN)

    # Its own process writes it, soon after it has been told.
    wait_until(holds_all, 30, "it is written")
