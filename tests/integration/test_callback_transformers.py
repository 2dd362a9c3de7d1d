"""The Trainer of transformers as a replica, where it is not as in the examples."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from structlog.testing import capture_logs
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from syncline.integrations import transformers as ours
from syncline.integrations.transformers import SynclineCallback, check
from syncline.optim.followed import followed
from syncline_proto.errors import ConfigError, LeaseLost, PortInUse
from syncline_testing.cluster import Cluster, free_ports
from syncline_testing.processes import python
from syncline_testing.replicas import QUICK
from syncline_testing.sleeping import LEASE_S, sleeps
from syncline_testing.training import LLAMA

ALONE = {**QUICK, "min_replicas": 1}
NOWHERE = "http://127.0.0.1:1"

BREAKS = """
import sys
from pathlib import Path
from syncline.integrations.transformers import SynclineCallback
from test_callback_transformers import ALONE, trainer

def breaks(step):
    if step == 3:
        raise ValueError("no more memory")

control, folder = sys.argv[1:]
callback = SynclineCallback(run="breaks", name="left", control=control, settings=ALONE)
trainer(Path(folder), callback, at_step=breaks).train()
"""


class Watched(Trainer):
    """Tells somebody of each forward pass before it is made."""

    at_step: Any = None
    forwards = 0
    odd_at: tuple[int, ...] = ()
    """Forward passes after which the loss is NaN, and so the gradient."""

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        self.forwards += 1
        if self.at_step:
            self.at_step(self.forwards)
        loss: Any = super().compute_loss(*given, **named)
        return loss * float("nan") if self.forwards in self.odd_at else loss


class Heard(TrainerCallback):
    """Hears what is logged, after those who came before it."""

    def __init__(self) -> None:
        self.heard: list[dict[str, float]] = []

    def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
        if logs and "loss" in logs:
            self.heard.append(dict(logs))


class Rates(TrainerCallback):
    """Notes by which rate each step went."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self._end: Any = lambda: None

    def on_step_begin(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        self._end()  # behind whatever hooks have come meanwhile
        inner = followed(optimizer)
        see: Any = lambda *_: self.seen.append(inner.param_groups[0]["lr"])  # noqa: E731
        self._end = inner.register_step_pre_hook(see).remove


def rows() -> Any:
    ids = torch.arange(16)
    return [{"input_ids": ids, "labels": ids}] * 32


def trainer(folder: Path, callback: SynclineCallback, at_step: Any = None, **how: Any) -> Watched:
    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": 16}))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=8,
        logging_steps=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        per_device_train_batch_size=2,
        **how,
    )
    made = Watched(
        model, arguments, train_dataset=rows(), eval_dataset=rows(), callbacks=[callback]
    )
    made.at_step = at_step
    return made


def log_of(cluster: Cluster, run: str) -> str:
    return str(cluster.get(f"/events?run={run}"))


@pytest.mark.long
def test_a_training_that_raises_leaves_at_the_end_of_the_process(
    cluster: Cluster, tmp_path: Path
) -> None:
    here = Path(__file__).parent
    text = f"import sys; sys.path[:0] = {[str(here), str(here.parent)]}\n{BREAKS}"
    with python("-c", text, cluster.control_url, str(tmp_path)) as process:
        _, errors = process.communicate(timeout=90)
    assert process.returncode == 1 and errors.endswith("ValueError: no more memory\n")
    assert cluster.get("/runs/breaks")["replicas_alive"] == 0
    assert "It ended with ValueError." in log_of(cluster, "breaks")


def test_the_next_training_ends_the_one_before(cluster: Cluster, tmp_path: Path) -> None:
    def breaks(step: int) -> None:
        if step == 3:
            raise ValueError("no more memory")

    callback = SynclineCallback(run="twice", control=cluster.control_url, settings=ALONE)
    broken = trainer(tmp_path, callback, breaks)
    with pytest.raises(ValueError, match="no more memory"):
        broken.train()
    first = callback.replica
    assert first is not None and cluster.get("/runs/twice")["replicas_alive"] == 1
    broken.at_step = None
    broken.train()
    assert callback.replica is not first
    assert cluster.get("/runs/twice")["replicas_alive"] == 0
    hooks = broken.model._forward_pre_hooks  # pyright: ignore[reportOptionalMemberAccess]
    assert not hooks, "nobody counts any more"


def test_what_is_logged_has_synchronisation_in_it_and_prometheus_may_ask(
    cluster: Cluster, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    asked: list[str] = []

    def ask(step: int) -> None:
        if step == 8:
            url = f"http://127.0.0.1:{port}/metrics"
            asked.append(httpx.get(url, trust_env=False).raise_for_status().text)

    after = Heard()
    how: dict[str, Any] = {"control": cluster.control_url, "settings": ALONE}
    made = trainer(tmp_path, SynclineCallback(run="seen", metrics_port=port, **how), ask)
    made.add_callback(after)
    made.train()
    logged = [entry for entry in made.state.log_history if "loss" in entry]
    assert after.heard == [{k: v for k, v in e.items() if k != "step"} for e in logged]
    revisions = [entry["sync/revision"] for entry in logged]
    assert revisions == sorted(revisions) and revisions[-1] > revisions[0]
    last = logged[-1]
    assert last["sync/bytes_up"] > 0 and last["sync/bytes_down"] > 0
    assert "syncline_worker_inner_steps_total{replica=" in asked[0]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        callback = SynclineCallback(run="refused", metrics_port=port, **how)
        with pytest.raises(PortInUse, match="choose another port .* metrics_port="):
            trainer(tmp_path, callback).train()
    assert "refused" not in str(cluster.get("/runs")), "it has not joined"


def test_steps_of_several_batches_count_all_of_them(cluster: Cluster, tmp_path: Path) -> None:
    """With evaluations between, of which no token counts."""
    callback = SynclineCallback(run="several", control=cluster.control_url, settings=ALONE)
    made = trainer(
        tmp_path,
        callback,
        gradient_accumulation_steps=3,
        eval_strategy="steps",
        eval_steps=4,
    )
    made.train()
    assert callback.replica is not None and callback.replica.inner_step == 8

    # An epoch is 16 batches: five steps of 3, and one of the batch that is left.
    assert callback.replica.committed_tokens == (5 * 3 + 1 + 2 * 3) * 2 * 16
    kinds = {curve["kind"] for curve in cluster.get("/runs/several/metrics")}
    assert kinds == {"train", "held-out"}


def head_of(made: Watched) -> float:
    assert isinstance(made.model, LlamaForCausalLM)
    return made.model.lm_head.weight.sum().item()


def test_a_step_that_is_not_finite_moves_nothing_and_three_go_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The second, and the last three of eight; in a round are four."""
    seen: list[float] = []
    callback = SynclineCallback(run="odd", control=cluster.control_url, settings=ALONE)
    made = trainer(tmp_path, callback, lambda _: seen.append(head_of(made)))
    made.odd_at = (2, 6, 7, 8)
    with capture_logs() as logs:
        made.train()
    replica = callback.replica
    assert replica is not None and replica.inner_step == 4
    assert replica.committed_tokens == 4 * 2 * 16 and replica.revision == 1
    assert seen[0] != seen[1] == seen[2] != seen[3]
    assert [log["revision"] for log in logs if log["event"] == "replica.goes_back"] == [1]
    assert head_of(made) == seen[6] == seen[7] != seen[5]


def test_an_infinite_loss_with_a_finite_gradient_moves_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It is seen where it leaves the model, in training alone."""
    seen: list[float] = []
    callback = SynclineCallback(run="infinite", control=cluster.control_url, settings=ALONE)
    made = trainer(tmp_path, callback, lambda _: seen.append(head_of(made)))
    model: Any = made.model
    compute = model.loss_function
    odd = {3}
    model.loss_function = lambda *given, **named: (
        compute(*given, **named) + (float("inf") if len(seen) in odd else 0.0)
    )
    made.train()
    assert callback.replica is not None and callback.replica.inner_step == 7
    assert seen[1] != seen[2] == seen[3] != seen[4]


def test_a_run_that_somebody_stops_stops_the_trainer(cluster: Cluster, tmp_path: Path) -> None:
    def stops(step: int) -> None:
        if step == 2:
            cluster.post("/runs/stopped/stop")

    callback = SynclineCallback(run="stopped", control=cluster.control_url, settings=ALONE)
    made = trainer(tmp_path, callback, stops)
    made.args.max_steps = 100_000
    made.train()
    assert callback.replica is not None and callback.replica.done


def test_a_lease_that_runs_out_begins_another_life_in_the_same_training(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The step in which it is heard is the last of the old life, and nobody's."""

    def is_late(step: int) -> None:
        if step == 3:
            sleeps(cluster, callback.replica)

    settings = ALONE | {"timeouts": {"lease": LEASE_S, "round_deadline": 20.0}}
    callback = SynclineCallback(run="late", control=cluster.control_url, settings=settings)
    made = trainer(tmp_path, callback, is_late)
    made.train()
    replica = callback.replica
    assert replica is not None and replica.incarnation == 2
    assert made.state.global_step == 8 and replica.inner_step == 5
    assert replica.committed_tokens == 5 * 2 * 16, "of the second life"
    (left,) = cluster.get("/runs/late/replicas")
    assert left["state"] == "left"


def test_a_joiners_first_steps_are_short_in_each_of_its_lives(
    cluster: Cluster, tmp_path: Path
) -> None:
    """SGD remembers nothing, so it begins anew wherever it joins."""
    how: dict[str, Any] = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant"}
    settings = ALONE | {"timeouts": {"lease": LEASE_S, "round_deadline": 20.0}}
    run: dict[str, Any] = {"run": "ramp", "control": cluster.control_url, "join_ramp_steps": 8}
    first, rates = Rates(), Rates()
    made = trainer(tmp_path, SynclineCallback(**run, settings=settings), **how)
    made.add_callback(first)
    made.train()
    assert first.seen == [0.5] * 8, "it has begun the run"
    callback = SynclineCallback(**run, name="late")

    def is_late(step: int) -> None:
        if step == 3:
            sleeps(cluster, callback.replica)

    made = trainer(tmp_path, callback, is_late, **how)
    made.add_callback(rates)
    made.train()
    assert callback.replica is not None and callback.replica.incarnation == 2
    eighth = 0.5 / 8
    assert rates.seen == [eighth * step for step in (1, 2, 3, 1, 2, 3, 4, 5)]
    optimizer: Any = made.optimizer
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_who_is_kicked_out_of_a_training_stays_out(cluster: Cluster, tmp_path: Path) -> None:
    def kicks(step: int) -> None:
        if step == 3:
            cluster.post("/runs/kicked/replicas/one/kick")

    callback = SynclineCallback(
        run="kicked", name="one", control=cluster.control_url, settings=ALONE
    )
    made = trainer(tmp_path, callback, kicks)
    made.args.max_steps = 100_000
    with pytest.raises(LeaseLost, match="An operator removed this replica"):
        made.train()
    callback.close(failed=True)


def test_sigterm_drains_a_training_that_heeds_no_signal(cluster: Cluster, tmp_path: Path) -> None:
    def is_told(step: int) -> None:
        if step == 3:
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            os.kill(os.getpid(), signal.SIGTERM)

    callback = SynclineCallback(run="told", control=cluster.control_url, settings=ALONE)
    made = trainer(tmp_path, callback, is_told)
    made.args.max_steps = 100_000
    made.train()
    replica = callback.replica
    assert replica is not None and replica.drained and replica.inner_step == 3
    assert replica.committed_tokens == 3 * 2 * 16, "what it did is in the run"
    (left,) = cluster.get("/runs/told/replicas")
    assert left["state"] == "left"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_a_run_cannot_bear_is_refused_before_anybody_joins(tmp_path: Path) -> None:
    made = trainer(tmp_path, SynclineCallback(control=NOWHERE))
    made.args.load_best_model_at_end = True
    with pytest.raises(ConfigError, match="load_best_model_at_end would put older parameters"):
        made.train()
    assert made.optimizer is not None
    hooks = vars(followed(made.optimizer))["_optimizer_step_pre_hooks"]
    assert not hooks, "the optimizer is as it was"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"deepspeed": "ds.json"}, "does not work with the Trainer's DeepSpeed"),
        ({"fsdp": True, "fsdp_plugin_args": None}, "the Trainer's FSDP for XLA"),
        ({"n_gpu": 4}, "DataParallel over 4 GPUs; .* start one process for each GPU"),
        ({"parallelism_config": object()}, "the Trainer's parallelism_config"),
    ],
)
def test_other_ways_to_spread_a_training_are_refused(how: dict[str, Any], said: str) -> None:
    plain: dict[str, Any] = {
        **{"load_best_model_at_end": False, "deepspeed": None, "n_gpu": 0},
        **{"fsdp": True, "fsdp_plugin_args": {"fsdp_version": 2}, "parallelism_config": None},
    }
    model = nn.Linear(1, 1)
    check(SimpleNamespace(**plain), model)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=said):
        check(SimpleNamespace(**(plain | how)), model)  # pyright: ignore[reportArgumentType]


def test_fsdp_of_version_1_is_refused_whoever_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come from the environment, of which the Trainer's arguments know nothing."""

    class Wrapped(nn.Linear):
        pass

    monkeypatch.setattr(ours, "FullyShardedDataParallel", Wrapped)
    plain: Any = SimpleNamespace(load_best_model_at_end=False, deepspeed=None)
    with pytest.raises(ConfigError, match="the Trainer's FSDP of version 1"):
        check(plain, nn.Sequential(Wrapped(1, 1)))
