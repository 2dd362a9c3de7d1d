"""A plain loop whose replica takes care; of one rank, or as one of several whose model is cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from syncline.layout import whole
from syncline_testing.replicas import Trial, batch, loss_of


class Loop(Trial):
    """Does what a loop must."""

    def __init__(self, control: str, run: str, **how: Any) -> None:
        def sgd(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters, lr=0.5)

        super().__init__(control, run, 0, optimizer=sgd, takes_care=True, **how)
        self.rates: list[float] = []
        """By which its steps went."""
        self.odd_at: tuple[int, ...] = ()

    def pass_over(self, batches: Iterable[Tensor]) -> list[list[float]]:
        """Train on all; a parameter's values before each."""
        self.optimizer.register_step_pre_hook(
            lambda *_: self.rates.append(self.optimizer.param_groups[0]["lr"])  # pyright: ignore[reportArgumentType]
        )
        values: list[list[float]] = []
        for number, tokens in enumerate(batches):
            values.append(whole(self.model.norm.weight).tolist())
            loss = loss_of(self.model, tokens) * (float("nan") if number in self.odd_at else 1.0)
            self.at_step(number)
            loss.backward()
            self.before_step(number)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return values

    def at_step(self, number: int) -> None:
        """For who wants something to happen."""

    def before_step(self, number: int) -> None:
        """The same, once there are gradients."""


def batches(count: int) -> list[Tensor]:
    return [batch(0, step) for step in range(count)]
