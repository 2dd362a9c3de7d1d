"""``SynclineCallback`` for Lightning 2, whose Trainer and modules stay as they are.

trainer = lightning.Trainer(callbacks=[SynclineCallback(run="my-run")], ...)
trainer.fit(module, loader)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from syncline.drained import is_free
from syncline.integrations.guest import GuestCallback, figures
from syncline_proto.errors import ConfigError

try:
    import lightning
    from lightning.pytorch.strategies import (
        DDPStrategy,
        DeepSpeedStrategy,
        ModelParallelStrategy,
        SingleDeviceStrategy,
    )
    from lightning.pytorch.strategies.xla import XLAStrategy
except ImportError:
    raise ConfigError("Lightning is not installed: pip install 'syncline[lightning]'") from None


class SynclineCallback(GuestCallback, lightning.Callback):
    """Makes a ``Trainer.fit`` a replica of a run, from its begin to its end.

    Joins in ``on_train_start``; stops the Trainer where the run ends; after ``fit`` the model
    holds the run's newest revision. A training that raises leaves without a last push. A step whose
    loss or gradient is not finite changes nothing. The ranks of a DDPStrategy or a
    ModelParallelStrategy (FSDP2) are one replica.
    ``tokens_of`` is given what ``training_step`` is given.
    """

    _may_heed = False
    """Nobody has set a handler of SIGTERM but Lightning, whose own ends training in an error."""
    _batch = 0
    """The number of the one that is trained."""
    _grad_norm: float | None = None
    """Of the last step that is told of."""

    def setup(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str
    ) -> None:
        """Lightning sets its handler after this."""
        self._may_heed = is_free()

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        optimizer = only_optimizer(trainer)
        # Before the replica's own hooks, which want to see gradients.
        self._hooks = [optimizer.register_step_pre_hook(with_gradients)]  # pyright: ignore[reportArgumentType]
        self._guest.begin(pl_module, optimizer, lambda: check(trainer), may_heed=self._may_heed)
        moved = self._guest.part_data(trainer.train_dataloader)
        fetcher = getattr(trainer.fit_loop, "_data_fetcher", None)
        if moved and fetcher is not None:
            iter(fetcher)  # it has begun to read in the order of before
        trainer.should_stop = trainer.should_stop or self._guest.has_ended()

    def on_train_batch_start(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert self.replica is not None
        self._batch = batch_idx
        if counts(trainer):
            self.replica.count_batch(batch)

    def on_before_backward(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, loss: Tensor
    ) -> None:
        self._guest.see_loss(loss)

    def on_before_optimizer_step(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        optimizer: Optimizer,
    ) -> None:
        """Gradients are clipped after this."""
        assert self.replica is not None
        # A GradScaler skips by itself, and finds its scale by infinite gradients.
        if getattr(trainer.precision_plugin, "scaler", None) is None:
            self._guest.judge()
        self.replica.synchronize()
        if self._is_told(trainer):
            self._grad_norm = self._guest.gradient_norm()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Tensor | Mapping[str, Any] | None,
        batch: Any,
        batch_idx: int,
    ) -> None:
        replica = self.replica
        assert replica is not None
        if self._guest.has_ended():
            trainer.should_stop = True
        every = told_every(trainer)
        if every and (batch_idx + 1) % every == 0:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if loss is not None:
                loss = loss * trainer.accumulate_grad_batches  # it is the share of one batch
            norm, rate = self._grad_norm, trainer.optimizers[0].param_groups[0]["lr"]
            replica.report(loss=loss, grad_norm=norm, lr=rate)
            if norm is not None:
                pl_module.log("train/grad_norm", norm, prog_bar=True)
            if replica.active:
                pl_module.log_dict(figures(replica))

    def on_train_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        self._end()

    def on_exception(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        exception: BaseException,
    ) -> None:
        self._end(exception)

    def _is_told(self, trainer: lightning.Trainer) -> bool:
        """Whether a batch that is told of comes before the next step, or is in this one."""
        every, batches = told_every(trainer), trainer.accumulate_grad_batches
        return every > 0 and (self._batch + batches) // every > self._batch // every

    def _end(self, error: BaseException | None = None) -> None:
        self._unhook()
        self._guest.end(failed=error is not None, error=error)


def only_optimizer(trainer: lightning.Trainer) -> Optimizer:
    """The module's one optimizer.

    Raises:
        ConfigError: the module has none, or several.
    """
    if len(trainer.optimizers) != 1:
        raise ConfigError(
            f"A replica follows exactly one optimizer, and the module has "
            f"{len(trainer.optimizers)}; make them one: syncline.optim.Several(...)."
        )
    return trainer.optimizers[0]


def with_gradients(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Run the closure in which Lightning makes the gradients, and step without it."""
    own, *given = args
    kwargs = dict(kwargs)
    closure = given.pop(0) if given else kwargs.pop("closure", None)
    if closure is not None:
        with torch.enable_grad():
            closure()
    return (own, *given), kwargs


def told_every(trainer: lightning.Trainer) -> int:
    """After how many batches the run is told of training; 0: never."""
    return getattr(trainer, "log_every_n_steps", 50)


def counts(trainer: lightning.Trainer) -> bool:
    """Whether a batch's tokens are this rank's to count: several may train on one batch.

    So do those that share matrices by tensor parallelism.
    """
    strategy = trainer.strategy
    if not isinstance(strategy, ModelParallelStrategy):
        return True
    return strategy.device_mesh["tensor_parallel"].get_local_rank() == 0


def check(trainer: lightning.Trainer) -> None:
    """See that the Trainer does nothing that a run cannot bear.

    Raises:
        ConfigError: it does.
    """
    strategy = trainer.strategy
    bears = isinstance(strategy, SingleDeviceStrategy | DDPStrategy | ModelParallelStrategy)
    if not bears or isinstance(strategy, DeepSpeedStrategy | XLAStrategy):
        raise ConfigError(
            f"A replica of Lightning is one device, or the ranks of a DDPStrategy or a "
            f"ModelParallelStrategy (FSDP2), and the Trainer has {type(strategy).__name__}; choose "
            "one of those, or give it devices=1 and start one process for each GPU: every one is "
            "a replica."
        )
