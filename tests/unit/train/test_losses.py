"""Whose fault it is when a forward pass fails: the user's model's, or of what is hooked into it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn

from syncline.hooks import _forward_hook
from syncline.train.losses import LossOf
from syncline_proto.errors import ConfigError


class Failing(nn.Module):
    def forward(self, input_ids: torch.Tensor) -> None:
        raise LookupError("no such row")


def fail(fragments: Iterable[int]) -> None:
    raise LookupError(f"nothing of {fragments}")


def test_only_what_the_model_raises_is_its_own() -> None:
    model = Failing()
    loss_of = LossOf(model, "mine:model")
    with pytest.raises(ConfigError, match=r"the model of mine:model raised LookupError: no such"):
        loss_of({"input_ids": torch.zeros(1)})
    model.register_forward_pre_hook(_forward_hook(fail, (0,)))
    with pytest.raises(LookupError, match="nothing of"):
        loss_of({"input_ids": torch.zeros(1)})


class Full(nn.Module):
    def forward(self, input_ids: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("no memory is left")


def test_a_full_device_is_not_the_models_fault() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="no memory is left"):
        LossOf(Full(), "mine:model")({"input_ids": torch.zeros(1)})
