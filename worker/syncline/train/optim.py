"""The inner optimizer with its parameter groups, and clipping by the global norm.

Works on plain tensors and on FSDP2's DTensors alike; the learning rate comes from ``schedules``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from syncline.layout import whole
from syncline.optim import AGD, WSAM, muon
from syncline.train.sections import OptimizerSection


def build_optimizer(model: nn.Module, section: OptimizerSection) -> Optimizer:
    """The optimizer of the trainable parameters; only those of two dimensions or more are decayed.

    Call it after ``shard_model``, which replaces the parameters.

    Raises:
        ConfigError: there is no matrix for Muon.
    """
    if section.name == "muon":
        return muon(
            model,
            lr=section.lr,
            weight_decay=section.weight_decay,
            momentum=section.momentum,
            betas=section.betas,
            eps=section.eps,
        )
    groups = _groups(model, section.weight_decay)
    if section.name == "agd":
        return AGD(groups, lr=section.lr, betas=section.betas, delta=section.delta)
    adamw = AdamW(groups, lr=section.lr, betas=section.betas, eps=section.eps, foreach=True)
    if section.name == "wsam":
        return WSAM(adamw, rho=section.rho, gamma=section.gamma)
    return adamw


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def set_lr(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_gradients(model: nn.Module, limit: float | None) -> float:
    """Scale all gradients so that their global norm is at most ``limit``; return it from before.

    None measures and leaves them as they are. A norm that is not finite leaves them, too.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    norm = whole(norm)
    total = float(norm)
    if limit is not None and limit < total < float("inf"):
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return total
