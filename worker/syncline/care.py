"""What a loop may leave to its replica at each step, where it would have lines of its own for it.

The first steps of who joins a run under way are shortened, a step whose gradient is not finite is
left out, and a lost lease is borne until the replica joins again. Knows the optimizer's hooks, and
decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch.optim import Optimizer


class Tended(Protocol):
    """A replica, as far as is needed here."""

    @property
    def lr_factor(self) -> float: ...

    def skips(self) -> bool: ...

    def bear_loss(self) -> None: ...


class Care:
    """For one replica's optimizer, from each ``begin`` to the ``end`` that follows."""

    def __init__(self, optimizer: Optimizer, is_on: bool) -> None:
        """Nothing happens where it is not on."""
        self.is_on = is_on
        self._optimizer = optimizer
        self._ends: list[Callable[[], None]] = []

    def begin(self, replica: Tended) -> None:
        """Ahead of the replica's own hooks, which average gradients."""

        def judge(optimizer: Optimizer, *_: Any) -> None:
            # A GradScaler skips by itself; of a fused optimizer it is asked in the step.
            if getattr(optimizer, "grad_scale", None) is None:
                replica.skips()

        if self.is_on:
            hook: Any = judge
            self._ends.append(self._optimizer.register_step_pre_hook(hook).remove)

    def follow(self, replica: Tended) -> None:
        """After them, which know of this life's first steps."""
        if self.is_on:
            replica.bear_loss()
            self._ends.append(ramped(self._optimizer, lambda: replica.lr_factor))

    def end(self) -> None:
        for end in reversed(self._ends):
            end()
        self._ends.clear()


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
