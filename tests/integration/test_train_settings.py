"""What a job says of its inner steps is what they do: rate, clipping, precision, pace."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from syncline.train.config import JobConfig
from syncline.train.loop import Trainer
from syncline.train.ranks import RankGroup, joined_ranks
from syncline.train.schedules import Schedule
from syncline.train.sharding import resharding
from syncline_proto.errors import ConfigError
from syncline_testing import probe
from syncline_testing.cluster import Cluster
from syncline_testing.training import LLAMA, STEP_TOKENS, Recorder, tiny_job, to_toml
from syncline_testing.warm import warm_ranks

STEPS = 12
WARMUP_STEPS = 4
FP32, BF16 = ["torch.float32"], ["torch.bfloat16"]


pytestmark = pytest.mark.usefixtures("alone")


def schedule_of(job: JobConfig) -> Schedule:
    """Written out once more, so that what the trainer hands on is seen."""
    return Schedule(
        kind=job.optimizer.schedule,
        peak=job.optimizer.lr,
        warmup_tokens=job.optimizer.warmup_tokens,
        total_tokens=job.run.token_budget,
        decay_share=job.optimizer.decay_share,
        min_ratio=job.optimizer.min_lr_ratio,
    )


def rates_of(trainer: Trainer) -> list[float]:
    """The learning rates of the steps to come, as the optimizer's groups have them."""
    rates: list[float] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        (rate,) = {group["lr"] for group in optimizer.param_groups}
        rates.append(rate)

    trainer.optimizer.register_step_pre_hook(note)
    return rates


@pytest.mark.parametrize("kind", ["cosine", "wsd", "constant"])
def test_the_rate_follows_the_schedule_in_tokens(data: Path, kind: str) -> None:
    optimizer = {
        "schedule": kind,
        "warmup_tokens": WARMUP_STEPS * STEP_TOKENS,
        "decay_share": 0.5,
        "min_lr_ratio": 0.2,
    }
    job = tiny_job(data, steps=STEPS, optimizer=optimizer)
    trainer = Trainer(job, RankGroup(), Recorder())
    rates = rates_of(trainer)
    trainer.run()
    schedule = schedule_of(job)
    assert rates == [schedule.lr((step + 1) * STEP_TOKENS) for step in range(STEPS)]
    assert rates[0] == pytest.approx(job.optimizer.lr / WARMUP_STEPS)
    assert rates[WARMUP_STEPS - 1] == pytest.approx(job.optimizer.lr)
    assert rates[-1] == pytest.approx(job.optimizer.lr * (1.0 if kind == "constant" else 0.2))


@pytest.mark.parametrize("clip", [1e-3, None])
def test_the_optimizer_sees_clipped_gradients(data: Path, clip: float | None) -> None:
    recorder = Recorder()
    trainer = Trainer(tiny_job(data, steps=3, train={"clip": clip}), RankGroup(), recorder)
    norms: list[float] = []

    def note(*_: Any) -> None:
        gradients = [p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]
        norms.append(float(torch.cat(gradients).norm()))

    trainer.optimizer.register_step_pre_hook(note)
    trainer.run()
    told = [now.grad_norm for now in recorder.snapshots]
    assert min(told) > 0.1, "what is told is the norm before clipping"
    expected = told if clip is None else [clip] * 3
    assert norms == pytest.approx(expected, rel=1e-4)


def test_two_ranks_compute_in_bf16_and_keep_what_they_are_told_to(
    data: Path, tmp_path: Path
) -> None:
    """FSDP2 over gloo; parameters, gradients and moments stay in fp32."""
    jobs = []
    for precision, reshard in (("bf16", True), ("fp32", False)):
        train = {"micro_batch": 2, "precision": precision, "reshard_after_forward": reshard}
        path = tmp_path / f"{precision}.toml"
        path.write_text(to_toml(tiny_job(data, steps=8, train=train)))
        jobs.append(str(path))
    with warm_ranks("-m", probe.__name__, *jobs) as ranks:
        ends = [rank.communicate(timeout=100) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], ends
    half, full = json.loads(ends[0][0])
    assert (half["computed"], full["computed"]) == (BF16, FP32)
    assert (half["sharers"], full["sharers"]) == ([2], [1])
    for told in (half, full):
        assert told["parameters"] == told["gradients"] == told["moments"] == FP32
        assert told["losses"][-1] < told["losses"][0] - 0.5
    assert half["losses"] != full["losses"]
    assert half["losses"] == pytest.approx(full["losses"], abs=0.05)


def test_four_ranks_share_in_pairs_what_the_backward_pass_needs(data: Path, tmp_path: Path) -> None:
    """They train bit for bit as without; two ranks of such a job are a pair, three are refused."""
    jobs = []
    for reshard in (True, 2):
        path = tmp_path / f"{reshard}.toml"
        train = {"micro_batch": 1, "reshard_after_forward": reshard}
        path.write_text(to_toml(tiny_job(data, steps=4, train=train)))
        jobs.append(str(path))
    with warm_ranks("-m", probe.__name__, *jobs, count=4) as ranks:
        ends = [rank.communicate(timeout=100) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * 4, ends
    flat, pairs = json.loads(ends[0][0])
    assert (flat["sharers"], pairs["sharers"]) == ([4], [2])
    assert flat["losses"] == pairs["losses"]
    assert [resharding(2, ranks) for ranks in (1, 2, 4)] == [True, True, 2]
    with pytest.raises(ConfigError, match="reshard_after_forward 2 does not divide the 3 ranks"):
        resharding(2, 3)


def test_one_process_without_a_gpu_computes_in_bf16_too(data: Path) -> None:
    job = tiny_job(data, steps=4, train={"precision": "bf16"})
    with joined_ranks(mixed_precision=True) as ranks:
        told = probe.probed(job, ranks)
    assert told["computed"] == BF16
    assert told["parameters"] == told["gradients"] == told["moments"] == FP32


@pytest.mark.long
@pytest.mark.timeout(240)  # a C++ compiler on a slow machine
@pytest.mark.filterwarnings("ignore")  # the compiler looks where torch warns of looking
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_blocks_train_as_plain_ones_do(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    # Each process of the compiler's own would load PyTorch once more.
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)
    losses = {}
    counters.clear()
    for compiled in (False, True):
        recorder = Recorder()
        one_block = {"config": {**LLAMA, "num_hidden_layers": 1}}
        job = tiny_job(data, steps=3, model=one_block, train={"compile": compiled})
        Trainer(job, RankGroup(), recorder).run()
        losses[compiled] = recorder.losses
        assert bool(counters["stats"]["unique_graphs"]) is compiled
    assert losses[True] == pytest.approx(losses[False], abs=1e-4)


class Paced:
    """A replica that was told to expect another one, which never came: what it did, and when."""

    SYNC_EVERY, EVALUATE, CHECKPOINT = 2, 2, 3

    def __init__(self, data: Path, folder: Path, cluster: Cluster) -> None:
        run = {
            "name": "paced",
            "sync_every": self.SYNC_EVERY,
            "expected_replicas": 2,
            "token_budget": STEPS * STEP_TOKENS,
            # The first round waits this long for the other one.
            "timeouts": {"lease": 0.9, "round_deadline": 1.0},
        }
        self.job = tiny_job(
            data,
            steps=STEPS,
            run=run,
            evaluate={"every_rounds": self.EVALUATE},
            checkpoint={"folder": folder, "every_rounds": self.CHECKPOINT, "keep": 9},
        )
        trainer = Trainer(self.job, RankGroup(), Recorder(), replica="only")
        self.rates = rates_of(trainer)
        self.ending = trainer.run()
        self.checkpoints = sorted(path.name for path in (folder / "paced" / "only").iterdir())
        self.curves = {one["kind"]: one["tokens"] for one in cluster.get("/runs/paced/metrics")}

    def tokens_at(self, step: int) -> int:
        """The run's, at the end of a step: committed, and this replica's since, times two."""
        since = (step - 1) % self.SYNC_EVERY + 1
        return (step - since + 2 * since) * STEP_TOKENS


@pytest.fixture(scope="module")
def paced(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paced]:
    folder = tmp_path_factory.mktemp("paced")
    with pytest.MonkeyPatch.context() as patch, Cluster(folder) as cluster:
        patch.setenv("SYNCLINE_CONTROL", cluster.control_url)
        yield Paced(data, folder / "kept", cluster)


@pytest.mark.long
def test_in_a_run_the_rate_counts_the_replicas_that_are_expected(paced: Paced) -> None:
    schedule = schedule_of(paced.job)
    assert paced.rates == [schedule.lr(paced.tokens_at(step + 1)) for step in range(STEPS)]
    assert paced.ending.reason == "budget" and paced.ending.rounds == STEPS // Paced.SYNC_EVERY


def test_rounds_pace_evaluations_and_checkpoints(paced: Paced) -> None:
    """A revision is there after the first step that computes with it; the last one at the end.

    Had the other replica come, the round before the last would have been it: both are settled.
    """
    between = range(1, STEPS // Paced.SYNC_EVERY)
    steps = {revision: Paced.SYNC_EVERY * revision + 1 for revision in between}
    evaluated = [step for revision, step in steps.items() if revision % Paced.EVALUATE == 0]
    settled = (STEPS - Paced.SYNC_EVERY, STEPS)
    assert paced.curves["held-out"] == [paced.tokens_at(step) for step in (*evaluated, *settled)]
    saved = [step for revision, step in steps.items() if revision % Paced.CHECKPOINT == 0]
    assert paced.checkpoints == [f"step-{step:010d}" for step in (*saved, STEPS)]
