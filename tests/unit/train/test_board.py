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
    both.snapshot(NOW)
    both.held_out("merged", 500_000, 2.0, 3.0)
    both.snapshot(replace(NOW, tokens=600_000, bits_per_byte=math.nan))
    both.held_out("held-out", 600_000, 2.0, math.nan)
    both.close()
    assert [{"tokens": tokens, **values} for tokens, values in drawn] == theirs.logged
    first, last, *uncounted = theirs.logged
    assert uncounted[0].keys() == first.keys() - {"train/bits_per_byte"}
    assert uncounted[1] == {"tokens": 600_000, "held-out/loss": 2.0}
    assert first["tokens"] == NOW.tokens and first["speed/mfu"] == NOW.mfu
    assert first["sync/stale_pushes"] == NOW.stale and first["sync/bytes_up"] == NOW.bytes_up
    assert (first["sync/aged_pushes"], first["sync/last_age"]) == (NOW.aged, NOW.last_age)
    assert last == {"tokens": 500_000, "merged/loss": 2.0, "merged/bits_per_byte": 3.0}
    assert theirs.steps == [("*", "tokens")] and theirs.is_finished
    assert (theirs.given["project"], theirs.given["group"]) == ("ours", "tiny")
    assert theirs.given["name"] == "tiny/replica-0"
    assert theirs.given["config"]["train"]["micro_batch"] == 4


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
    offline.snapshot(NOW)
    offline.close()
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    # Its own process writes it, soon after it has been told.
    wait_until(lambda: b"train/bits_per_byte" in written.read_bytes(), 30, "it is written")
