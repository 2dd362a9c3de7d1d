"""A replica in the loop of others: what it does to their optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from syncline.integrations.guest import ramped


def test_a_joiners_first_steps_are_shorter_and_the_schedule_hears_nothing_of_it() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.5}])
    factors = iter([0.25, 1.0])
    end = ramped(optimizer, lambda: next(factors))
    moved: list[float] = []
    for _ in range(3):
        weight.grad = torch.ones(1)
        before = weight.item()
        optimizer.step()
        moved.append(before - weight.item())
        assert optimizer.param_groups[0]["lr"] == 0.5
        if len(moved) == 2:
            end()
    assert moved == [0.125, 0.5, 0.5]


def test_a_step_that_fails_leaves_no_lower_rate_behind() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.5}])
    end = ramped(optimizer, lambda: 0.5)
    failing = optimizer.register_step_pre_hook(fail)
    weight.grad = torch.ones(1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            optimizer.step()
        assert optimizer.param_groups[0]["lr"] == 0.25
    failing.remove()
    optimizer.step()
    assert weight.item() == -0.25 and optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(ZeroDivisionError):
        optimizer.register_step_pre_hook(fail)
        optimizer.step()
    end()
    assert optimizer.param_groups[0]["lr"] == 0.5


def fail(*_: object) -> None:
    raise ZeroDivisionError
