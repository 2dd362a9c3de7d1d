"""What an optimizer remembers, written back as it was."""

from __future__ import annotations

from itertools import chain
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def load_as_they_are(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Take tensors of a state dict in their own dtype, after ``load_state_dict``.

    PyTorch's own rounds each to its parameter's.
    """
    numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, value in state_dict["state"].get(number, {}).items():
            if isinstance(value, Tensor) and value.dim():
                optimizer.state[parameter][name] = value.to(parameter.device)
