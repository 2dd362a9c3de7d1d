"""What inner optimizers refuse, in the same words."""

from __future__ import annotations

from torch import Tensor

from syncline_proto.errors import ConfigError


def check_not_negative(**values: float) -> None:
    """Refuse settings below 0; each is given by its name.

    Raises:
        ConfigError: a value is below 0, or is no number.
    """
    for name, value in values.items():
        if not value >= 0:
            raise ConfigError(f"{name} is {value}; it must be at least 0.")


def check_betas(betas: tuple[float, float]) -> None:
    """Refuse decay rates outside of [0, 1).

    Raises:
        ConfigError: one is not in [0, 1).
    """
    if not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"betas are {betas}; each must be at least 0 and below 1.")


def check_dense(parameter: Tensor) -> None:
    """Refuse a parameter whose gradient is sparse.

    Raises:
        ConfigError: the gradient is sparse.
    """
    if parameter.grad is not None and parameter.grad.is_sparse:
        raise ConfigError(
            "A gradient is sparse, which this optimizer cannot follow; build the embedding with "
            "sparse=False."
        )
