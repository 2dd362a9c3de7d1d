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


def test_an_optimizer_of_another_model_is_refused_before_anybody_joins() -> None:
    model = nn.Linear(2, 2)
    other = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    for control in (None, "http://127.0.0.1:9"):
        with pytest.raises(ConfigError, match="none of the model's parameters"):
            Replica(model, other, control=control).start()


def test_two_replicas_around_one_model_are_refused_until_one_is_closed_or_gone() -> None:
    model = nn.Linear(2, 2)
    first, second = (Replica(model, torch.optim.AdamW(model.parameters())) for _ in range(2))
    with first, pytest.raises(ConfigError, match="around this model was started already"):
        second.start()
    with second, pytest.raises(ConfigError, match="around this model was started already"):
        first.start()
    second.start()
    del second
    with first:
        pass


@pytest.mark.parametrize("other", [None, "adamw", nn.Linear(2, 2)])
def test_nothing_else_is_followed(other: object) -> None:
    with pytest.raises(ConfigError, match=r"needs a torch\.optim\.Optimizer"):
        Replica(nn.Linear(2, 2), other)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("other", [None, "llama", [nn.Linear(2, 2)]])
def test_no_other_model_is_trained(other: object) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"needs a torch\.nn\.Module"):
        Replica(other, optimizer)  # pyright: ignore[reportArgumentType]
