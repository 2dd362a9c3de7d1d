"""A replica in the loop of others: what it does to their optimizer."""

from __future__ import annotations

import torch
from torch import nn

from syncline.integrations.guest import ramped


def test_a_joiners_first_steps_are_shorter_and_the_schedule_hears_nothing_of_it() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.5}])
    factors = iter([0.25, 1.0])
    handles = ramped(optimizer, lambda: next(factors))
    moved: list[float] = []
    for _ in range(3):
        weight.grad = torch.ones(1)
        before = weight.item()
        optimizer.step()
        moved.append(before - weight.item())
        assert optimizer.param_groups[0]["lr"] == 0.5
        if len(moved) == 2:
            for handle in handles:
                handle.remove()
    assert moved == [0.125, 0.5, 0.5]
