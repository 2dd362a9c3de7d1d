"""The outer step's inner loop, over flat fp32 arrays of equal length; ``merge`` says what for."""

from __future__ import annotations

import numpy as np

from syncline_proto.codec import Float32
from syncline_proto.compiled import compiled, read, written


@compiled(
    "void",
    read("float32"),
    *(written("float32"), written("float32")),
    *("float32", "float32", "float32"),
)
def step(
    parameters: Float32,
    momentum: Float32,
    accumulator: Float32,
    factor: np.float32,
    mu: np.float32,
    lr: np.float32,
) -> None:
    """D = factor * acc; v = mu v + D; acc = theta - lr (mu v + D)."""
    for i in range(parameters.size):
        d = accumulator[i] * factor
        v = momentum[i] * mu + d
        momentum[i] = v
        accumulator[i] = parameters[i] - (v * mu + d) * lr
