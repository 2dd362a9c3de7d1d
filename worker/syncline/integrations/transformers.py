"""``SynclineCallback`` for the ``Trainer`` of transformers, whose loop stays as it is.

    trainer = Trainer(model, args, train_dataset=..., callbacks=[SynclineCallback(run="my-run")])
    trainer.train()

The Trainer tells its callbacks nothing of batches; they are counted where they enter the model.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from syncline.integrations.guest import GuestCallback, figures
from syncline.optim.followed import followed
from syncline_proto.errors import ConfigError


class SynclineCallback(GuestCallback, TrainerCallback):
    """Makes a training by the Trainer a replica of a run, from its begin to its end.

    Joins in ``on_train_begin``; stops the Trainer where the run ends; after ``train`` the model
    holds the run's newest revision. A training that raises leaves without a last push, when the
    process ends, the next training begins, or ``close`` is called.

    Under torchrun the ranks are one replica, with DDP or FSDP2.

    A step whose loss (where the model's forward computes it) or gradient is not finite changes
    nothing. In the synchronous phase each replica clips its own gradient, before the mean is taken.
    ``tokens_of`` is given what the model's forward is given by name.
    """

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        assert model is not None and optimizer is not None
        self.close(failed=True)
        # Ahead of the replica's own hooks, which average gradients in the synchronous phase.
        judging: Any = self._judge
        self._hooks.append(followed(optimizer).register_step_pre_hook(judging))
        try:
            replica = self._guest.begin(model, optimizer, lambda: check(args, model))
        except BaseException:
            self._unhook()
            raise
        atexit.register(self._at_exit)
        self._guest.part_data(train_dataloader)

        def count(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            if module.training and torch.is_grad_enabled():
                replica.count_batch(named or given)

        def see(module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
            if module.training and torch.is_grad_enabled():
                self._guest.see_loss(made.get("loss") if isinstance(made, Mapping) else None)

        before: Any = torch.compiler.disable(count)
        after: Any = torch.compiler.disable(see)
        self._hooks.append(model.register_forward_pre_hook(before, with_kwargs=True))
        self._hooks.append(model.register_forward_hook(after))
        control.should_training_stop = self._guest.has_ended()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._guest.has_ended():
            control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """What is logged of training is told to the run, and has ours beside it from here on."""
        if self.replica is None or not logs:
            return
        if "loss" in logs:
            if self.replica.active:
                ours = figures(self.replica)
                logs.update(ours)
                state.log_history[-1].update(ours)
            self.replica.report(
                loss=logs["loss"], grad_norm=logs.get("grad_norm"), lr=logs.get("learning_rate")
            )
        if "eval_loss" in logs:
            self.replica.add_point("held-out", logs["eval_loss"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.close()

    def close(self, failed: bool = False) -> None:
        """Leave the run, if the training has not; ``failed``: without a last push."""
        self._end(failed=failed)

    def _judge(self, optimizer: Optimizer, *_: Any) -> None:
        # A GradScaler skips by itself; of a fused optimizer it is asked in the step.
        if self._guest.is_live and getattr(optimizer, "grad_scale", None) is None:
            self._guest.judge()

    def _end(self, *, failed: bool, error: BaseException | None = None) -> None:
        atexit.unregister(self._at_exit)
        self._unhook()
        self._guest.end(failed=failed, error=error)

    def _at_exit(self) -> None:
        """The training raised, and nobody caught it: Python keeps what it was."""
        self._end(failed=True, error=getattr(sys, "last_value", None))


def check(args: TrainingArguments, model: nn.Module) -> None:
    """See that the Trainer does nothing that a run cannot bear.

    Raises:
        ConfigError: it does.
    """
    if args.load_best_model_at_end:
        raise ConfigError(
            "load_best_model_at_end would put older parameters in the place of the run's; "
            "leave it out, and take the run's newest revision."
        )
    what = spread_by(args, model)
    if what:
        raise ConfigError(
            f"The callback does not work with the Trainer's {what}; a replica of it is one device, "
            "or under torchrun several with DDP or FSDP2 (fsdp=True). Choose one of these, or "
            "start one process for each GPU without torchrun, each with its own "
            "CUDA_VISIBLE_DEVICES: every one is a replica."
        )


def spread_by(args: TrainingArguments, model: nn.Module) -> str:
    """What lets several devices train in a way that no replica can; "" where nothing does."""
    modules = list(model.modules())
    if args.deepspeed:
        return "DeepSpeed"
    if any(isinstance(module, FullyShardedDataParallel) for module in modules):
        return "FSDP of version 1"
    if args.fsdp and args.fsdp_plugin_args is None:
        return "FSDP for XLA"
    if args.n_gpu > 1:
        return f"DataParallel over {args.n_gpu} GPUs"
    # Who shares matrices or sequences has the same batch, whose tokens would count twice.
    if args.parallelism_config is not None:
        return "parallelism_config"
    if getattr(model, "is_distributed_loading_by_transformers", False):
        return "distributed_config"
    return ""
