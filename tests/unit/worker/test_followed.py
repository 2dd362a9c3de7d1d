"""A replica finds the optimizer that steps inside what others wrap around it."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from syncline import Replica
from syncline.optim import WSAM
from syncline.optim.followed import followed
from syncline_proto.errors import ConfigError


def test_what_accelerate_prepared_is_looked_into() -> None:
    adamw = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    prepared = Accelerator(cpu=True).prepare(adamw)
    assert isinstance(prepared, AcceleratedOptimizer)
    assert followed(prepared) is adamw


def test_an_optimizer_around_another_steps_itself() -> None:
    wsam = WSAM(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    assert followed(wsam) is wsam


@pytest.mark.parametrize("other", [None, "adamw", nn.Linear(2, 2)])
def test_nothing_else_is_followed(other: object) -> None:
    with pytest.raises(ConfigError, match=r"needs a torch\.optim\.Optimizer"):
        Replica(nn.Linear(2, 2), other)  # pyright: ignore[reportArgumentType]
