"""What a loop may leave to its replica at each step, where it would have lines of its own for it.

The first steps of who joins a run under way are shortened, a step whose loss or gradient is not
finite is left out, and a lost lease is borne until the replica joins again. Knows the hooks of
model and optimizer, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Tended(Protocol):
    """A replica, as far as is needed here."""

    @property
    def lr_factor(self) -> float: ...

    def skips(self, loss: float | Tensor | None = None) -> bool: ...

    def bear_loss(self) -> None: ...


class Care:
    """For one replica's model and optimizer, from each ``begin`` to the ``end`` that follows."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, is_on: bool) -> None:
        """Nothing happens where it is not on."""
        self.is_on = is_on
        self._model, self._optimizer = model, optimizer
        self._loss: Tensor | None = None
        """The last loss through which a gradient has come since the last step; if one of these was
        not finite, the first that was not."""
        self._ends: list[Callable[[], None]] = []

    def begin(self, replica: Tended) -> None:
        """Register what comes before the replica's own hooks, which average gradients."""

        def judge(optimizer: Optimizer, *_: Any) -> None:
            loss, self._loss = self._loss, None
            # A GradScaler skips by itself; of a fused optimizer it is asked in the step.
            if getattr(optimizer, "grad_scale", None) is None:
                replica.skips(loss)

        if self.is_on:
            # Code that was compiled before does not look whether a model has new hooks.
            torch.compiler.reset()
            hook: Any = judge
            self._ends.append(self._optimizer.register_step_pre_hook(hook).remove)
            # Nor would code that is compiled from here on whether one has gone, with it written in.
            see: Any = torch.compiler.disable(self._see)
            self._ends.append(self._model.register_forward_hook(see).remove)

    def forget(self) -> None:
        """The loop itself has judged this step's losses."""
        self._loss = None

    def follow(self, replica: Tended) -> None:
        """Register what comes after those hooks, which know of this life's first steps."""
        if self.is_on:
            replica.bear_loss()
            self._ends.append(ramped(self._optimizer, lambda: replica.lr_factor))

    def end(self) -> None:
        for end in reversed(self._ends):
            end()
        self._ends.clear()
        self.forget()

    def _see(self, model: nn.Module, given: Any, made: Any) -> None:
        """A loss may be infinite, or NaN, whose gradient is not.

        A value through which no gradient comes is no loss: the loop evaluates, or has dropped the
        batch. What was seen before a forward pass that finds no gradients does not count: its step
        was left out.
        """
        if torch.is_grad_enabled() and not self._has_gradients():
            self.forget()
        for loss in scalars(made):
            value = loss.detach().reshape(())
            loss.register_hook(lambda _, value=value: self._note(value))

    def _has_gradients(self) -> bool:
        groups = self._optimizer.param_groups
        return any(p.grad is not None for group in groups for p in group["params"])

    def _note(self, loss: Tensor) -> None:
        before = self._loss
        if before is not None:
            loss = torch.where(before.isfinite(), loss.to(before.device), before)
        self._loss = loss


def scalars(made: Any) -> Iterator[Tensor]:
    """What a model's forward gives that may be a loss: itself, or in a mapping or a tuple.

    Of what it computed: a parameter of its own, given along, would keep a hook from each pass.
    """
    some = made.values() if isinstance(made, Mapping) else made
    for one in some if isinstance(made, Mapping | tuple | list) else (made,):
        if isinstance(one, Tensor) and one.grad_fn is not None and one.numel() == 1:
            yield one


def ramped(optimizer: Optimizer, factor: Callable[[], float]) -> Callable[[], None]:
    """Let each step go by ``factor`` of the rates that are set, and leave those as they are.

    Returns what ends that.
    """
    rates: list[tuple[Any, Any]] = []
    """By group: the rate that was set, and the one that a step goes by."""

    def lower(*_: Any) -> None:
        restore()  # after a step that raised
        share = factor()
        for group in optimizer.param_groups:
            rate = group["lr"]
            group["lr"] = rate * share
            rates.append((rate, group["lr"]))

    def restore(*_: Any) -> None:
        for group, (rate, lowered) in zip(optimizer.param_groups, rates, strict=False):
            if group["lr"] is lowered:  # else a schedule has set another meanwhile
                group["lr"] = rate
        rates.clear()

    before: Any = lower
    after: Any = restore
    handles = [
        optimizer.register_step_pre_hook(before),
        optimizer.register_step_post_hook(after),
    ]

    def end() -> None:
        restore()
        for handle in handles:
            handle.remove()

    return end
