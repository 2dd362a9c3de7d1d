"""What a round makes, from the formulas of docs/protocol.md section 9, in float64.

One fragment, all its pushes whole; nothing of how they travelled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from independent.numbers import Array


def norm(values: Array) -> float:
    """Euclidean."""
    return float(np.linalg.norm(values.astype(np.float64)))


class Mean:
    """A bias-corrected exponential average."""

    def __init__(self, ema: float) -> None:
        self._ema, self._sum, self._missing = ema, 0.0, 1.0

    def feed(self, value: float) -> None:
        self._sum += self._ema * (value - self._sum)
        self._missing *= 1.0 - self._ema

    @property
    def value(self) -> float | None:
        return self._sum / (1.0 - self._missing) if self._missing < 1.0 else None


class Merged:
    """A fragment's θ and v, round after round; `penalty.temperature` is not set."""

    def __init__(self, first: Array, settings: Mapping[str, Any]) -> None:
        self.parameters = np.asarray(first, np.float64)
        self.momentum = np.zeros_like(self.parameters)
        self._settings = settings
        self._norms = Mean(settings["penalty"]["ema"])

    def round(self, pushes: Mapping[str, Array], steps: int) -> dict[str, float]:
        """Merge the pushes that are not anomalous, each of ``steps``; replica -> its weight."""
        penalty, outer = self._settings["penalty"], self._settings["outer"]
        norms = {name: norm(values) for name, values in pushes.items()}
        power: float = (steps / self._settings["sync_every"]) ** penalty["step_power"]
        mean = self._norms.value
        if penalty["enabled"] and mean is not None:
            temperature = penalty["kappa"] * mean
            weights = {name: power * math.exp(-g / temperature) for name, g in norms.items()}
        else:
            weights = {name: power for name in norms}
        total = sum(weights.values())
        shares = {name: weight / total for name, weight in weights.items()}
        step = np.zeros_like(self.parameters)
        for name, values in pushes.items():
            step += shares[name] * values.astype(np.float64)
        if outer.get("clip") is not None:
            step *= min(1.0, outer["clip"] / (norm(step) + 1e-6))
        self.momentum = outer["momentum"] * self.momentum + step
        self.parameters = self.parameters - outer["lr"] * (step + outer["momentum"] * self.momentum)
        for name in sorted(pushes):
            self._norms.feed(norms[name])
        return shares
