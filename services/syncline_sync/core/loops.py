"""The merge's inner loops, over flat fp32 arrays of equal length; ``merge`` says what for."""

from __future__ import annotations

import numpy as np

from syncline_proto.codec import Float32
from syncline_proto.compiled import compiled, read, written


@compiled("float64", read("float32"), is_sum=True)
def square_sum(values: Float32) -> float:
    """Sum of squares in float64, which no fp32 overflows; NaN and inf pass through."""
    total = 0.0
    for i in range(values.size):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@compiled("void", written("float32"), read("float32"), "float32")
def scale(out: Float32, values: Float32, factor: np.float32) -> None:
    """out = factor * values."""
    for i in range(out.size):
        out[i] = values[i] * factor


@compiled("void", written("float32"), read("float32"), "float32")
def add(out: Float32, values: Float32, factor: np.float32) -> None:
    """out += factor * values."""
    for i in range(out.size):
        out[i] += values[i] * factor


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
