"""Lightning's Trainer as a replica, where it is not as in the example."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from structlog.testing import capture_logs
from torch import nn
from torch.utils.data import DataLoader

from syncline.integrations.lightning import SynclineCallback, check, counts
from syncline_proto.errors import ConfigError
from syncline_testing.cluster import Cluster
from syncline_testing.replicas import QUICK
from syncline_testing.sleeping import LEASE_S, sleeps

# Its own: of PyTorch's newer names, of few workers.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

ALONE = {**QUICK, "min_replicas": 1}


class Small(lightning.LightningModule):
    def __init__(
        self,
        optimizers: int = 1,
        breaks_at: int = -1,
        told_at: int = -1,
        odd_at: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.model, self.optimizers_made, self.breaks_at = nn.Linear(4, 4), optimizers, breaks_at
        self.told_at, self.odd_at = told_at, odd_at
        self.at_step: Callable[[int], object] = lambda number: None
        self.seen: list[float] = []
        self.automatic_optimization = optimizers == 1

    def training_step(self, batch: Any, number: int) -> Any:
        if number == self.breaks_at:
            raise ValueError("no more memory")
        self.at_step(number)
        if number == self.told_at:
            os.kill(os.getpid(), signal.SIGTERM)
        self.seen.append(self.model.weight.sum().item())
        loss = self.model(batch["x"]).square().mean()
        return loss + float("inf") if number in self.odd_at else loss

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(self.optimizers_made)]


class Begun(DataLoader[Any]):
    """Counts its passes."""

    passes = 0
    trainer: lightning.Trainer

    def __iter__(self) -> Any:
        self.passes += 1
        return super().__iter__()


class Rates(lightning.Callback):
    """Notes by which rate each step went."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self._end: Callable[[], None] = lambda: None

    def on_train_batch_start(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._end()  # behind whatever hooks have come meanwhile
        (optimizer,) = trainer.optimizers
        see: Any = lambda *_: self.seen.append(optimizer.param_groups[0]["lr"])  # noqa: E731
        self._end = optimizer.register_step_pre_hook(see).remove


def fit(
    module: Small, callback: SynclineCallback, *others: lightning.Callback, **how: Any
) -> Begun:
    """Six batches of eight tokens."""
    batches = [{"x": torch.ones(2, 4), "input_ids": torch.ones(8, dtype=torch.int64)}] * 6
    made = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        callbacks=[callback, *others],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"log_every_n_steps": 2, **how},
    )
    loader = Begun(batches, batch_size=None)  # pyright: ignore[reportArgumentType]
    made.fit(module, loader)
    loader.trainer = made
    return loader


def of_lightning(control: str, run: str) -> SynclineCallback:
    return SynclineCallback(run=run, control=control, settings=ALONE)


def test_a_fit_that_raises_leaves_at_once(cluster: Cluster) -> None:
    """That of one that logs nothing, too."""
    callback = of_lightning(cluster.control_url, "fit-breaks")
    with pytest.raises(ValueError, match="no more memory"):
        fit(Small(breaks_at=3), callback, log_every_n_steps=0)
    assert cluster.get("/runs/fit-breaks")["replicas_alive"] == 0
    assert "It ended with ValueError." in str(cluster.get("/events?run=fit-breaks"))


def test_a_fit_with_steps_of_several_batches_counts_and_tells_all(cluster: Cluster) -> None:
    callback = of_lightning(cluster.control_url, "fit")
    module = Small()
    first = module.training_step({"x": torch.ones(2, 4)}, 0).item()
    read = fit(module, callback, accumulate_grad_batches=2, gradient_clip_val=0.01)
    assert read.passes == 1, "nothing was moved, so it is not begun anew"
    assert callback.replica is not None and callback.replica.inner_step == 3
    assert callback.replica.committed_tokens == 6 * 8
    logged = read.trainer.logged_metrics
    assert logged["sync/bytes_up"] > 0 and "sync/exposed_seconds" in logged
    (curve,) = cluster.get("/runs/fit/metrics")
    assert (curve["kind"], curve["tokens"]) == ("train", [16, 32, 48])
    assert curve["loss"][0] == pytest.approx(first, rel=1e-6) and curve["loss"][-1] < first
    norm = logged["train/grad_norm"]
    assert norm > 0.02 and callback.replica.reported["grad_norm"] == norm, "before it is clipped"
    assert read.trainer.progress_bar_metrics["train/grad_norm"] == norm


def test_a_loss_that_is_not_finite_moves_nothing_of_a_fit(cluster: Cluster) -> None:
    """Its gradient is: it is the loss alone that tells; of the first batch of two."""
    callback = of_lightning(cluster.control_url, "fit-odd")
    module = Small(odd_at=(2,))
    fit(module, callback, accumulate_grad_batches=2)
    replica = callback.replica
    assert replica is not None and replica.inner_step == 2
    assert replica.committed_tokens == 2 * 2 * 8, "what it read is trained by nobody"
    assert module.seen[1] != module.seen[2] == module.seen[4] != module.model.weight.sum().item()


def test_three_losses_that_are_not_finite_bring_the_newest_revision(cluster: Cluster) -> None:
    callback = of_lightning(cluster.control_url, "fit-sick")
    module = Small(odd_at=(2, 3, 4))
    with capture_logs() as logs:
        fit(module, callback)
    assert [log["revision"] for log in logs if log["event"] == "replica.goes_back"] == [0]
    assert module.seen[5] == module.seen[0], "the two steps before are no round's"
    assert callback.replica is not None and callback.replica.inner_step == 3


def test_a_lease_that_runs_out_begins_another_life_in_the_same_fit(
    cluster: Cluster,
) -> None:
    """The step in which it is heard is the last of the old life, and nobody's."""
    settings = ALONE | {"timeouts": {"lease": LEASE_S, "round_deadline": 20.0}}
    callback = SynclineCallback(run="fit-late", control=cluster.control_url, settings=settings)
    module = Small()
    module.at_step = lambda number: number != 2 or sleeps(cluster, callback.replica)
    fit(module, callback)
    replica = callback.replica
    assert replica is not None and replica.incarnation == 2 and replica.inner_step == 3
    assert replica.committed_tokens == 3 * 8
    assert module.seen[2] != module.seen[0] == module.seen[3], "the run's, which has no round"


def test_a_joiners_first_steps_are_short_in_each_of_its_lives(cluster: Cluster) -> None:
    """SGD remembers nothing, so it begins anew wherever it joins."""
    settings = ALONE | {"timeouts": {"lease": LEASE_S, "round_deadline": 20.0}}
    first = Rates()
    how: dict[str, Any] = {"run": "fit-ramp", "control": cluster.control_url}
    fit(Small(), SynclineCallback(**how, settings=settings, join_ramp_steps=4), first)
    assert first.seen == [0.1] * 6, "it has begun the run"
    late, rates, module = SynclineCallback(**how, name="late", join_ramp_steps=4), Rates(), Small()
    module.at_step = lambda number: number != 2 or sleeps(cluster, late.replica)
    trainer = fit(module, late, rates).trainer
    assert late.replica is not None and late.replica.incarnation == 2
    assert rates.seen == pytest.approx([0.025, 0.05, 0.075] * 2)
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.1


def test_sigterm_drains_a_fit_where_lightning_alone_heeds_it(cluster: Cluster) -> None:
    """Its own handler ends a fit in an error, without a last push; who has one keeps it."""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    callback = of_lightning(cluster.control_url, "fit-told")
    fit(Small(told_at=2), callback)
    replica = callback.replica
    assert replica is not None and replica.drained and replica.inner_step == 3
    assert replica.committed_tokens == 3 * 8, "what it did is in the run"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with pytest.raises(SIGTERMException):
            fit(Small(told_at=2), of_lightning(cluster.control_url, "fit-own"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_what_a_run_cannot_bear_is_refused_of_lightning_too() -> None:
    with pytest.raises(ConfigError, match="has 2; make them one"):
        fit(Small(optimizers=2), of_lightning("http://127.0.0.1:1", "two"))
    several: Any = SimpleNamespace(strategy=FSDPStrategy())
    with pytest.raises(ConfigError, match="one device, or the ranks .* the Trainer has FSDPStra"):
        check(several)


@pytest.mark.parametrize("rank", [0, 1])
def test_of_ranks_that_share_a_batch_one_counts_it(rank: int) -> None:
    strategy, own = ModelParallelStrategy(), SimpleNamespace(get_local_rank=lambda: rank)
    meshes: Any = {"tensor_parallel": own}
    strategy._device_mesh = meshes
    trainer: Any = SimpleNamespace(strategy=strategy)
    assert counts(trainer) == (rank == 0)
