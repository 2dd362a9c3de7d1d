"""The trainer without a run: it learns, resumes exactly, survives a NaN, and exports its model."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from syncline.data.errors import DataError
from syncline.train.config import JobConfig
from syncline.train.export import NONE_LACKING, export_model, full_state
from syncline.train.exported import ORIGIN, Origin, sign
from syncline.train.loop import Trainer
from syncline.train.progress import Ending, JsonListener, Snapshot
from syncline.train.ranks import RankGroup
from syncline.train.sample import sample
from syncline_proto.errors import ConfigError, FileMissing, TrainingDiverged
from syncline_testing.full import files_may_have
from syncline_testing.training import LLAMA, STEP_TOKENS, Recorder, tiny_job

pytestmark = pytest.mark.usefixtures("alone")


def train(job: JobConfig, *, resume: bool = False) -> tuple[Ending, Recorder, Trainer]:
    recorder = Recorder()
    trainer = Trainer(job, RankGroup(), recorder, resume=resume)
    ending = trainer.run()
    assert recorder.ending == ending
    return ending, recorder, trainer


def test_thirty_steps_lower_the_loss(data: Path, tmp_path: Path) -> None:
    job = tiny_job(data, steps=30, log={"every_steps": 1, "tensorboard": tmp_path / "board"})
    ending, recorder, _ = train(job)
    assert ending.reason == "budget"
    assert ending.tokens == ending.own_tokens == 30 * STEP_TOKENS
    assert ending.held_out_local is None
    assert ending.bits_per_byte_start is not None and ending.bits_per_byte_merged is not None
    assert ending.bits_per_byte_merged < ending.bits_per_byte_start - 1.0
    assert recorder.losses[-1] < recorder.losses[0] - 0.5
    assert [now.inner_step for now in recorder.snapshots] == list(range(1, 31))
    board = EventAccumulator(str(tmp_path / "board" / "alone")).Reload()
    drawn = board.Scalars("train/loss")
    assert [event.step for event in drawn] == [STEP_TOKENS * (i + 1) for i in range(30)]
    assert [event.value for event in drawn] == pytest.approx(recorder.losses)
    first, last = board.Scalars("merged/loss")
    assert first.step == 0
    assert (last.step, last.value) == (ending.tokens, pytest.approx(ending.held_out_merged))


def test_accumulation_takes_the_same_steps_as_a_larger_batch(data: Path) -> None:
    whole = tiny_job(data, steps=4, train={"micro_batch": 4})
    parts = tiny_job(data, steps=4, train={"micro_batch": 2, "accumulate": 2})
    assert train(parts)[1].losses == pytest.approx(train(whole)[1].losses, abs=1e-6)


@pytest.mark.parametrize("name", ["adamw", "muon", "agd", "wsam"])
def test_a_resumed_training_goes_on_bit_for_bit(data: Path, tmp_path: Path, name: str) -> None:
    how = {"model": {"config": {**LLAMA, "attention_dropout": 0.1}}, "optimizer": {"name": name}}
    straight = tiny_job(data, steps=12, **how)
    _, uninterrupted, there = train(straight)

    kept = {"folder": tmp_path / "kept", "every_steps": 4}
    first = tiny_job(data, steps=12, **how, checkpoint=kept)
    recorder = Recorder()
    trainer = Trainer(first, RankGroup(), recorder)
    with pytest.raises(KeyboardInterrupt):
        recorder.update = lambda now: _interrupt_at(6, now)
        trainer.run()
    _, resumed, here = train(first, resume=True)

    assert resumed.losses == uninterrupted.losses[4:]
    for parameter, tensor in full_state(here.model).items():
        assert torch.equal(tensor, full_state(there.model)[parameter]), parameter
    kept_steps = sorted(path.name for path in (tmp_path / "kept" / "tiny" / "alone").iterdir())
    assert kept_steps == ["step-0000000008", "step-0000000012"]


def test_a_training_never_starts_among_older_checkpoints_of_its_run(
    data: Path, tmp_path: Path
) -> None:
    kept = {"folder": tmp_path}
    train(tiny_job(data, steps=4, checkpoint=kept))
    with pytest.raises(ConfigError) as raised:
        train(tiny_job(data, steps=2, checkpoint=kept))
    said = raised.value.message
    assert said.startswith(f"checkpoint.folder: {tmp_path}/tiny/alone has checkpoints of this run")
    assert "step-0000000004" in said and "--resume" in said
    train(tiny_job(data, steps=2, run={"name": "other"}, checkpoint=kept))
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*/*")}
    assert found == {"tiny/alone/step-0000000004", "other/alone/step-0000000002"}


def _interrupt_at(step: int, now: Snapshot) -> None:
    if now.inner_step == step:
        raise KeyboardInterrupt


def test_a_checkpoint_that_does_not_fit_is_refused(data: Path, tmp_path: Path) -> None:
    folder = {"folder": tmp_path}
    with pytest.raises(FileMissing, match="start without --resume"):
        train(tiny_job(data, steps=2, checkpoint=folder), resume=True)
    train(tiny_job(data, steps=2, checkpoint=folder))
    (tmp_path / "tiny").rename(tmp_path / "other")
    with pytest.raises(ConfigError, match="of run tiny, not other"):
        train(tiny_job(data, steps=4, run={"name": "other"}, checkpoint=folder), resume=True)
    (tmp_path / "other").rename(tmp_path / "tiny")
    other = tiny_job(data, steps=4, optimizer={"name": "agd"}, checkpoint=folder)
    with pytest.raises(ConfigError, match="of optimizer adamw, not agd"):
        train(other, resume=True)
    told = tmp_path / "tiny" / "alone" / "step-0000000002" / "rank-0.json"
    fits = told.read_text()
    told.write_text(fits.replace('"position": ', '"position": 9999999'))
    with pytest.raises(DataError, match=f"{told.parent} does not fit the data: .* not exist; sta"):
        train(tiny_job(data, steps=4, checkpoint=folder), resume=True)
    told.write_text(fits)
    wider = {**LLAMA, "intermediate_size": 96}
    job = tiny_job(data, steps=4, model={"config": wider}, checkpoint=folder)
    with pytest.raises(ConfigError, match="does not fit this job"):
        train(job, resume=True)


def test_a_loss_that_is_not_finite_is_skipped(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tiny_job(data, steps=4)
    recorder = Recorder()
    trainer = Trainer(job, RankGroup(), recorder)
    _spoil(trainer, monkeypatch, calls={2, 3})
    ending = trainer.run()
    assert ending.skipped_steps == 2
    assert ending.inner_step == 4 and ending.tokens == 4 * STEP_TOKENS
    assert all(loss == loss for loss in recorder.losses)
    assert all(bool(p.isfinite().all()) for p in trainer.model.parameters())


def test_a_second_gradient_that_is_not_finite_moves_nothing(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fourth pass is the second of the second step."""
    job = tiny_job(data, steps=4, optimizer={"name": "wsam"})
    trainer = Trainer(job, RankGroup(), Recorder())
    _spoil(trainer, monkeypatch, calls={4})
    moved: list[bool] = []
    take = trainer._step.__class__.__call__

    def watched(*args: Any, **how: Any) -> Any:
        before = [p.detach().clone() for p in trainer.model.parameters()]
        report = take(*args, **how)
        after = trainer.model.parameters()
        moved.append(not all(torch.equal(a, b) for a, b in zip(before, after, strict=True)))
        assert report.taken == moved[-1]
        return report

    monkeypatch.setattr(trainer._step.__class__, "__call__", watched)
    with capture_logs() as logs:
        ending = trainer.run()
    (said,) = [log for log in logs if log["event"].startswith("step skipped")]
    assert math.isnan(said["loss"]), "the second pass's"
    assert (ending.skipped_steps, ending.inner_step, ending.tokens) == (1, 4, 4 * STEP_TOKENS)
    assert moved[:2] == [True, False] and all(moved[2:])


def test_five_in_a_row_end_the_training(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(tiny_job(data, steps=9), RankGroup(), Recorder())
    _spoil(trainer, monkeypatch, calls=set(range(2, 7)))
    with pytest.raises(TrainingDiverged, match="lower optimizer.lr"):
        trainer.run()


def _spoil(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    """Let these forward passes in training (from 1) end in NaN, as an overflow would."""
    forward, count = trainer.model.forward, 0

    def spoiled(**batch: torch.Tensor) -> object:
        nonlocal count
        out = forward(**batch)
        if trainer.model.training:
            count += 1
            if count in calls:
                out.loss = out.loss * float("nan")
        return out

    monkeypatch.setattr(trainer.model, "forward", spoiled)


def test_sigterm_ends_after_the_step_and_saves(data: Path, tmp_path: Path) -> None:
    job = tiny_job(data, steps=50, checkpoint={"folder": tmp_path})
    recorder = Recorder()
    trainer = Trainer(job, RankGroup(), recorder)
    before = signal.getsignal(signal.SIGTERM)

    def update(now: Snapshot) -> None:
        if now.inner_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    recorder.update = update
    ending = trainer.run()
    assert ending.reason == "drained" and ending.inner_step == 3
    assert [path.name for path in (tmp_path / "tiny" / "alone").iterdir()] == ["step-0000000003"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_is_the_same_model_to_transformers(
    data: Path, tmp_path: Path, tied: bool
) -> None:
    config = {**LLAMA, "tie_word_embeddings": tied}
    job = tiny_job(data, steps=2, model={"config": config}, export={"folder": tmp_path / "out"})
    ending, _, trainer = train(job)
    assert ending.exported == str(tmp_path / "out")

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    ids = tokenizer("def main():", return_tensors="pt")["input_ids"]
    assert ids.tolist() == [list(b"def main():")]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, trainer.model.eval()(ids).logits)
    said = sample(tmp_path / "out", "def ", max_new_tokens=8)
    assert said.startswith("def ")
    assert said == sample(tmp_path / "out", "def ", max_new_tokens=8)


def test_who_trains_alone_replaces_no_model_but_its_own(data: Path, tmp_path: Path) -> None:
    job = tiny_job(data, steps=1, export={"folder": tmp_path})
    sign(tmp_path, Origin(run="gone"))  # whose model somebody has taken away
    train(job)
    signed = (tmp_path / ORIGIN).read_text()
    train(job)
    assert (tmp_path / ORIGIN).read_text() == signed
    before = (tmp_path / "model.safetensors").stat().st_mtime_ns
    other = tiny_job(data, steps=1, run={"name": "other"}, export={"folder": tmp_path})
    with pytest.raises(ConfigError, match="holds a model trained alone as tiny already; choose"):
        Trainer(other, RankGroup(), Recorder())
    for origin in (Origin(run="tiny"), None):
        (tmp_path / ORIGIN).unlink() if origin is None else sign(tmp_path, origin)
        with pytest.raises(ConfigError, match="--set export.folder=DIR, or remove it"):
            Trainer(job, RankGroup(), Recorder())
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == before


def test_an_export_to_a_full_disk_is_told_and_leaves_nothing(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = tiny_job(data, steps=1, export={"folder": out})
    with files_may_have(8192), pytest.raises(ConfigError, match=f"cannot export to {out}: .*room"):
        train(job)
    assert not list(out.iterdir())


@pytest.mark.parametrize("what", ["tokenizer", "model"])
def test_an_export_that_is_damaged_is_told_in_one_sentence(
    data: Path, tmp_path: Path, what: str
) -> None:
    train(tiny_job(data, steps=1, export={"folder": tmp_path}))
    damaged = {"tokenizer": "tokenizer.json", "model": "model.safetensors"}[what]
    (tmp_path / damaged).write_text('{"version": "1.0", "added_tokens": [], "model": {"type": 3}}')
    with pytest.raises(ConfigError) as raised:
        sample(tmp_path)
    said = raised.value.message
    assert said.startswith(f"the {what} in {tmp_path} cannot be loaded (") and "\n" not in said
    again = f"syncline export RUN --out {tmp_path} --overwrite"
    assert said.endswith(f"); write the folder anew with: {again}.")


def test_a_training_goes_on_from_an_exported_folder(data: Path, tmp_path: Path) -> None:
    job = tiny_job(data, steps=2)
    _, _, trainer = train(job)
    whole, origin = full_state(trainer.model), Origin(run="tiny", alone=True)
    export_model(whole, job, tmp_path, frozen_sha256=NONE_LACKING, origin=origin)
    again = Trainer(tiny_job(data, steps=2, model={"path": tmp_path, "config": None}), RankGroup(),
                    Recorder())  # fmt: skip
    for name, tensor in full_state(again.model).items():
        assert torch.equal(tensor, full_state(trainer.model)[name]), name


def test_json_progress_is_one_object_a_line(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with path.open("w") as out:
        Trainer(tiny_job(data, steps=3), RankGroup(), JsonListener(out)).run()
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [one["event"] for one in told] == ["start", *["progress"] * 3, "end"]
    assert told[-1]["bits_per_byte_start"] == told[0]["bits_per_byte"]
    assert told[-2]["tokens"] == told[-1]["tokens"] == told[0]["tokens_total"]
