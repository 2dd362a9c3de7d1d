"""Several ranks are one replica in the loops of others: DDP and FSDP2, in both libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK
from syncline_testing.warm import warm_ranks

STEPS, ROWS, ROW, BATCH = 8, 64, 8, 2
SETTINGS = {**QUICK, "min_replicas": 1}

HEAD = """
import json, os, signal, sys
import torch
import torch.distributed as dist
from syncline.interrupts import end
from syncline.layout import whole
from syncline_testing.replicas import published

kinds, settings, control, sync, folder, steps, rows, row, each = json.loads(sys.argv[1])
rank, left = int(os.environ["RANK"]), {}
torch.set_num_threads(1)

def tell(run):
    if run.endswith("told") and rank == ("fsdp2" in run):  # the other rank hears nothing
        os.kill(os.getpid(), signal.SIGTERM)

def leave(run, model, replica, prefix, seen):
    values, revision = published(sync, run)
    off = [float((whole(p).cpu() - torch.from_numpy(values[name.removeprefix(prefix)])).abs().max())
        for name, p in model.named_parameters()]
    sharded = sum(whole(p).numel() for p in model.parameters()) != sum(
        p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in model.parameters())
    left[run] = {"off": max(off), "sharded": sharded, "seen": seen, "steps": replica.inner_step,
        "tokens": replica.committed_tokens, "drained": replica.drained, "of": len(values),
        "norm": replica.reported.get("grad_norm")}
"""

TAIL = """
print(json.dumps(left))
dist.destroy_process_group()
end(0)
"""

TRAINER = (
    HEAD
    + """
from syncline_testing.accelerated import fsdp_on_cpu
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from syncline.integrations.transformers import SynclineCallback
from syncline_testing.training import LLAMA

class Watched(Trainer):
    def compute_loss(self, model, inputs, **named):
        seen.extend(inputs["input_ids"][:, 0].tolist())
        if len(seen) == 3 * each:
            tell(run)
        return super().compute_loss(model, inputs, **named)

for run in kinds:
    seen = []
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": rows}))
    data = [{"input_ids": (ids := torch.arange(n, n + row) % rows), "labels": ids}
        for n in range(rows)]
    how = {"fsdp": True} if "fsdp2" in run else {}
    with fsdp_on_cpu():
        arguments = TrainingArguments(output_dir=folder, max_steps=steps, logging_steps=2,
            save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
            per_device_train_batch_size=each, learning_rate=1e-2, **how)
        callback = SynclineCallback(run=run, control=control, settings=settings)
        trainer = Watched(model, arguments, train_dataset=data, callbacks=[callback])
        trainer.train()
    leave(run, trainer.model, callback.replica, "", seen)
"""
    + TAIL
)

LIGHTNING = (
    HEAD
    + """
import lightning
from torch.distributed.fsdp import fully_shard
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from syncline.integrations.lightning import SynclineCallback
from syncline_testing.replicas import TinyModel, loss_of

class Language(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = TinyModel(3)

    def configure_model(self):
        if "fsdp2" in run:
            mesh = self.device_mesh["data_parallel"]
            for part in (*self.model.blocks, self.model):
                fully_shard(part, mesh=mesh)

    def training_step(self, batch, number):
        seen.extend(batch[:, 0].tolist())
        if number == 2:
            tell(run)
        return loss_of(self.model, batch % 23)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

for run in kinds:
    seen = []
    module = Language()
    data = [torch.arange(n, n + row) for n in range(rows)]
    loader = torch.utils.data.DataLoader(data, batch_size=each, shuffle=True)
    ways = {"ddp": DDPStrategy(process_group_backend="gloo")}
    if "fsdp2" in run:
        ways["fsdp2"] = ModelParallelStrategy(
            data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
    callback = SynclineCallback(run=run, control=control, settings=settings)
    made = lightning.Trainer(max_steps=steps, accelerator="cpu", devices=2, logger=False,
        strategy=ways[run.split("-")[1]], enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=2, callbacks=[callback])
    made.fit(module, loader)
    leave(run, module, callback.replica, "", seen)
"""
    + TAIL
)


def in_two_ranks(folder: Path, cluster: Cluster, text: str, kinds: list[str]) -> list[Any]:
    """What each of the ranks tells of each kind of training."""
    where = (cluster.control_url, cluster.sync_address, str(folder))
    given = json.dumps([kinds, SETTINGS, *where, STEPS, ROWS, ROW, BATCH])
    with warm_ranks("-c", text, given, SYNCLINE_REPLICA="pair") as ranks:
        ends = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ends[0][1]
    return [json.loads(out.strip().splitlines()[-1]) for out, _ in ends]


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("text", "library"), [(TRAINER, "hf"), (LIGHTNING, "lightning")])
def test_ranks_of_a_library_are_one_replica(
    cluster: Cluster, tmp_path: Path, text: str, library: str
) -> None:
    """SIGTERM drains all of them, whichever hears it."""
    kinds = [f"{library}-{how}" for how in ("ddp", "ddp-told", "fsdp2", "fsdp2-told")]
    left = in_two_ranks(tmp_path, cluster, text, kinds)
    for run in kinds:
        first, second = (one[run] for one in left)
        steps = 3 if run.endswith("told") else STEPS
        for one in (first, second):
            assert one["off"] == 0.0 and one["steps"] == steps, run
            assert one["tokens"] == steps * 2 * BATCH * ROW, "each rank counts its own"
            assert one["drained"] == run.endswith("told") and one["of"] > 4
            assert one["sharded"] == ("fsdp2" in run)
            assert len(one["seen"]) == len(set(one["seen"])) == steps * BATCH
        assert first["norm"] == pytest.approx(second["norm"], rel=1e-5)
        assert not set(first["seen"]) & set(second["seen"])
        (view,) = cluster.get(f"/runs/{run}/replicas")
        assert view["ranks"] == 2 and view["state"] == "left"
        assert view["progress"]["grad_norm"] == pytest.approx(first["norm"])
