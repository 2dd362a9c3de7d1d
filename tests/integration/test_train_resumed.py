"""What an optimizer remembers comes back with a replica that goes on in its run from a checkpoint.

By the trainer, by that of transformers and by Lightning's; the parameters are the run's all the
same.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments
from transformers import Trainer as OfTransformers

from syncline.integrations import lightning as for_lightning
from syncline.integrations.transformers import SynclineCallback
from syncline.optim.followed import followed
from syncline.train.loop import Trainer
from syncline.train.progress import Snapshot
from syncline.train.ranks import RankGroup
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK, published
from syncline_testing.training import LLAMA, Recorder, tiny_job

ALONE = {**QUICK, "min_replicas": 1}
Remembered = list[dict[str, torch.Tensor]]


def remembered(optimizer: torch.optim.Optimizer) -> Remembered:
    """Copies of all that it holds, in the order of its parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [{k: v.clone() for k, v in optimizer.state[p].items()} for p in parameters]


class AtFirst:
    """Notes what an optimizer holds, and the model, as the first step is about to be taken."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.held: Remembered = []
        self.parameters: dict[str, torch.Tensor] = {}
        self._model = model
        optimizer.register_step_pre_hook(self._see)

    def _see(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if not self.held:
            self.held = remembered(optimizer)
            self.parameters = {n: p.detach().clone() for n, p in self._model.named_parameters()}


def assert_same(held: Remembered, saved: Remembered) -> None:
    assert len(held) == len(saved) > 0
    for here, there in zip(held, saved, strict=True):
        assert here.keys() == there.keys() >= {"exp_avg", "exp_avg_sq", "step"}
        assert there["step"] > 0 and there["exp_avg"].any()
        for key, value in there.items():
            assert torch.equal(here[key], value), key


def is_of_the_run(parameters: dict[str, torch.Tensor], held: dict[str, Any]) -> bool:
    return all(
        torch.equal(value, torch.as_tensor(held[name]).view_as(value))
        for name, value in parameters.items()
    )


def test_the_trainer_goes_on_with_what_its_optimizer_held(
    cluster: Cluster, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCLINE_CONTROL", cluster.control_url)
    run = {"name": "trainer", "sync_every": 4, "min_replicas": 1}
    job = tiny_job(data, steps=12, run=run, checkpoint={"folder": tmp_path})

    def drain(now: Snapshot) -> None:
        if now.inner_step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    recorder = Recorder()
    recorder.update = drain
    before = Trainer(job, RankGroup(), recorder, replica="one")
    assert before.run().reason == "drained"
    saved = remembered(before.optimizer)

    after = Trainer(job, RankGroup(), Recorder(), replica="one", resume=True)
    assert_same(remembered(after.optimizer), saved)
    seen = AtFirst(after.model, after.optimizer)
    assert after.run().reason == "budget"
    assert_same(seen.held, saved)
    assert remembered(after.optimizer)[0]["step"] > saved[0]["step"]


class Seen(TrainerCallback):
    """Begins to look once the optimizer is the one that trains."""

    at_first: AtFirst | None = None

    def on_train_begin(self, *_: Any, model: Any = None, optimizer: Any = None, **__: Any) -> None:
        self.at_first = AtFirst(model, followed(optimizer))


def of_transformers(
    folder: Path, control: str, steps: int
) -> tuple[OfTransformers, SynclineCallback, Seen]:
    row = {"input_ids": torch.arange(16), "labels": torch.arange(16)}
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_strategy="steps",
        save_steps=6,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        per_device_train_batch_size=2,
    )
    ours, seen = SynclineCallback(run="of-hf", name="one", control=control, settings=ALONE), Seen()
    rows: Any = [row] * 32
    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": 16}))
    made = OfTransformers(model, arguments, train_dataset=rows, callbacks=[ours, seen])
    return made, ours, seen


def test_transformers_goes_on_from_its_checkpoint_in_the_run(
    cluster: Cluster, tmp_path: Path
) -> None:
    of_transformers(tmp_path, cluster.control_url, 8)[0].train()
    kept = tmp_path / "checkpoint-6"
    state = torch.load(kept / "optimizer.pt", weights_only=True)["state"]
    held, revision = published(cluster.sync_address, "of-hf")

    made, ours, seen = of_transformers(tmp_path, cluster.control_url, 12)
    made.train(resume_from_checkpoint=str(kept))
    assert made.state.global_step == 12 and seen.at_first is not None
    assert_same(seen.at_first.held, [state[number] for number in sorted(state)])
    # The checkpoint was made between two rounds; the run has gone on since.
    assert is_of_the_run(seen.at_first.parameters, held)
    assert ours.replica is not None and ours.replica.revision > revision > 1


class Small(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 4)
        self.at_first: AtFirst | None = None

    def training_step(self, batch: Any, number: int) -> Any:
        return self.model(batch["x"]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def on_train_start(self) -> None:
        self.at_first = AtFirst(self, self.trainer.optimizers[0])


def fit(control: str, epochs: int, path: Path | None = None) -> tuple[lightning.Trainer, Small]:
    """Six batches of eight tokens an epoch."""
    batches: Any = [{"x": torch.ones(2, 4), "input_ids": torch.ones(8, dtype=torch.int64)}] * 6
    ours = for_lightning.SynclineCallback(
        run="of-lightning", name="one", control=control, settings=ALONE
    )
    made = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        callbacks=[ours],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Small()
    made.fit(module, DataLoader(batches, batch_size=None), ckpt_path=path)
    return made, module


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Lightning's own: of PyTorch's newer names,
@pytest.mark.filterwarnings("ignore::UserWarning")  # of few workers
def test_lightning_goes_on_from_its_checkpoint_in_the_run(cluster: Cluster, tmp_path: Path) -> None:
    made, first = fit(cluster.control_url, 1)
    path = tmp_path / "kept.ckpt"
    made.save_checkpoint(path)
    assert first.at_first is not None and first.at_first.held == [{}, {}]
    saved = remembered(made.optimizers[0])
    weights = {name: p.detach().clone() for name, p in first.named_parameters()}

    # The second time the run has gone on since.
    for is_newest in (True, False):
        held, revision = published(cluster.sync_address, "of-lightning")
        assert is_of_the_run(weights, held) == is_newest
        again, module = fit(cluster.control_url, 2, path)
        assert again.global_step == 12 and module.at_first is not None
        assert_same(module.at_first.held, saved)
        assert is_of_the_run(module.at_first.parameters, held)
        assert published(cluster.sync_address, "of-lightning")[1] > revision > 0
