"""One inner step: what is clipped and told is the gradient by which it is taken."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from syncline.setbacks import Setbacks
from syncline.train.ranks import RankGroup
from syncline.train.step import Gradients, InnerStep

CLIP = 0.5


class Falls:
    """A model of three weights, and a loss that falls by the same gradient everywhere."""

    def __init__(self, slope: float) -> None:
        self.model = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self._slope = slope

    def __call__(self, batch: Tensor) -> Tensor:
        return self._slope * self.model(batch).sum()


class NoReturn:
    """A replica that has nothing to go back to."""

    stats = SimpleNamespace(rounds=0)

    def go_back(self) -> bool:
        return False


REPLICA: Any = NoReturn()


def stepped(slope: float, by: Gradients, other: float = 0.0) -> tuple[Any, list[float], int]:
    """What a step tells, the weights after it, and how many were counted.

    All of the gradient is ``slope``, and ``other`` where it is replaced.
    """
    falls: Any = Falls(slope)
    train: Any = SimpleNamespace(accumulate=1, clip=CLIP)
    counted: list[int] = []
    optimizer = torch.optim.SGD(falls.model.parameters(), lr=0.0)
    step = InnerStep(falls, optimizer, train, RankGroup(), Setbacks(REPLICA))

    def before_update() -> Gradients:
        if by is Gradients.REPLACED:
            falls.model.weight.grad.fill_(other)
        return by

    report = step(
        lambda: torch.ones(1, 3),  # pyright: ignore[reportArgumentType]
        lr=lambda: 1.0,
        count=lambda: counted.append(1),
        before_update=before_update,
    )
    return report, falls.model.weight.flatten().tolist(), len(counted)


@pytest.mark.parametrize("other", [0.1, 4.0])
def test_where_gradients_are_replaced_the_new_ones_are_clipped_and_told(other: float) -> None:
    """Its own would be far over the limit, or far below."""
    for slope in (100.0, 1e-3):
        report, weights, _ = stepped(slope, Gradients.REPLACED, other)
        norm = other * math.sqrt(3)
        assert report.taken and report.grad_norm == pytest.approx(norm)
        assert weights == pytest.approx([-other * min(1.0, CLIP / norm)] * 3, rel=1e-5)


def test_a_gradient_of_its_own_is_clipped_and_told_as_it_was() -> None:
    report, weights, counted = stepped(2.0, Gradients.OWN)
    assert report.taken and counted == 1
    assert report.grad_norm == pytest.approx(2.0 * math.sqrt(3))
    assert weights == pytest.approx([-2.0 * CLIP / report.grad_norm] * 3, rel=1e-5)


def test_a_step_that_is_called_off_or_not_finite_changes_nothing() -> None:
    report, weights, counted = stepped(2.0, Gradients.NONE)
    assert (report.taken, weights, counted) == (False, [0.0] * 3, 1)
    report, weights, counted = stepped(float("inf"), Gradients.OWN)
    assert (report.taken, weights, counted) == (False, [0.0] * 3, 0)
