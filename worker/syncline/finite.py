"""An inner step that must not be taken: how this rank sees it, and how it is left out.

Knows what the backward pass has left; what all ranks make of it is for ``session``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from syncline.layout import local_part
from syncline.optim import WSAM


def gradient_norm(optimizer: Optimizer) -> Tensor:
    """Of this rank's part of all gradients, of no dimension; NaN or infinite where one element is.

    On a GPU it lies there, and nothing has waited for it.
    """
    gradients = [
        _elements(local_part(parameter.grad))
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    return torch.nn.utils.get_total_norm(gradients)


def leave_out(optimizer: Optimizer) -> None:
    """Leave no gradient, so that an update would change nothing: neither values nor state."""
    if isinstance(optimizer, WSAM):
        optimizer.abandon()
    optimizer.zero_grad()


def _elements(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
