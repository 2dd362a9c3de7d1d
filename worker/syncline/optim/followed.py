"""The optimizer that a replica follows: the one that steps, and not what is wrapped around it."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from syncline_proto.errors import ConfigError

HOOKS = "_optimizer_step_post_hooks"
"""What every optimizer of torch has in itself, and a mere wrapper (Accelerate's) has not."""


def followed(optimizer: Any) -> Optimizer:
    """Return the optimizer that steps, inside whatever is wrapped around it.

    Raises:
        ConfigError: there is none whose steps hooks could see.
    """
    inner = optimizer
    while isinstance(inner, Optimizer) and HOOKS not in vars(inner):
        inner = getattr(inner, "optimizer", None)
    if not isinstance(inner, Optimizer):
        raise ConfigError("Replica needs a torch.optim.Optimizer, whose steps it can follow.")
    return inner
