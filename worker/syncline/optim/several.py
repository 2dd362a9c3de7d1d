"""Several optimizers as one, each with parameters of its own: Muon for matrices, AdamW beside it.

A replica follows exactly one optimizer, and so do learning rate schedules and checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from syncline.blocks import blocks_in
from syncline.optim.states import load_as_they_are
from syncline.optim.wsam import WSAM
from syncline_proto.errors import ConfigError


class Several(Optimizer):
    """Optimizers that step together. Groups, state and state dict are those of all, in order."""

    def __init__(self, *parts: Optimizer) -> None:
        """Step ``parts`` as one optimizer, in this order.

        Raises:
            ConfigError: there is none, two have the same parameter, or one stands around others.
        """
        if any(isinstance(part, (Several, WSAM)) for part in parts):
            raise ConfigError("Put WSAM around Several, and no Several into another.")
        groups = [group for part in parts for group in part.param_groups]
        every = list(chain.from_iterable(group["params"] for group in groups))
        if not every:
            raise ConfigError("Several needs optimizers with parameters.")
        if len(set(every)) < len(every):
            raise ConfigError("Two optimizers have the same parameter; give it to one of them.")
        super().__init__(groups, {})
        self.parts = parts
        for part in parts:
            self.state.update(part.state)
        self._share(groups)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step of each."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while it is made: nobody could say whose it is.

        Raises:
            ConfigError: always after that.
        """
        if hasattr(self, "parts"):
            raise ConfigError("Add the group to one of the optimizers, before they become one.")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        load_as_they_are(self, state_dict)
        self._share(self.param_groups)

    def _share(self, groups: list[dict[str, Any]]) -> None:
        """The parts have these very groups, and one state."""
        self.param_groups, start = groups, 0
        for part in self.parts:
            end = start + len(part.param_groups)
            part.param_groups, part.state = groups[start:end], self.state
            start = end


def muon(
    model: nn.Module,
    lr: float = 3e-4,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
) -> Several:
    """Muon for the matrices of the transformer blocks; AdamW for embeddings, norms, head, biases.

    PyTorch's own Muon, whose updates are scaled to the size of AdamW's (arXiv 2502.16982, section
    2.2), so that one learning rate and its schedule serve both. Only matrices are decayed.

    Args:
        model: after ``fully_shard``; parameters that require no gradient are left out.
        lr: learning rate of both.
        weight_decay: of matrices and embeddings, in both.
        momentum: Muon's.
        betas: AdamW's.
        eps: AdamW's.

    Raises:
        ConfigError: the model has no list of equal blocks, or none of their matrices is trained.
    """
    found = blocks_in(model)
    inside = set[Tensor]() if found is None else set(found[1].parameters())
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p in inside and p.ndim == 2]
    if not matrices:
        raise ConfigError(
            "The model has no transformer blocks with matrices to train by Muon; give each "
            "optimizer its parameters: syncline.optim.Several(Muon(...), AdamW(...))."
        )
    own = set(matrices)
    rest = [p for p in trained if p not in own]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    first = Muon(
        matrices,
        lr=lr,
        weight_decay=weight_decay,
        momentum=momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    return Several(first, *([AdamW(groups, lr=lr, betas=betas, eps=eps)] if groups else []))
