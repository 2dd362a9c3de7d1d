"""How much a push counts: less, the larger its norm (EDiT's weighting, arXiv 2412.07210).

    w = exp(-(G - ref) / T) * (n / H) ** rho            float64; the merge divides by their sum

Pure. ``ref`` only keeps the numbers in range and cancels in the division. It is the norm of the
round's first accepted push, and moves to a smaller one, by scaling what is already in the
accumulator, when a weight would leave the range: so weights never depend on the order of arrival,
whatever the norms. (A clamp of the exponent around a reference from earlier rounds would make
them equal, or all zero, where norms have moved far from it.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from syncline_proto.settings import PenaltySettings
from syncline_sync.core.detector import Statistics

EXPONENT_MAX = 30.0
"""e**30 is 1e13: far from overflow in fp32, where the accumulator lives."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The round's temperature and reference; ``temperature`` None means equal weights."""

    temperature: float | None
    reference: float | None = None


@dataclass(frozen=True, slots=True)
class Weight:
    """A push's weight, and the factor for what the accumulator holds already (1: leave it)."""

    value: float
    rescale: float
    scale: Scale


def scale_of(statistics: Statistics, rules: PenaltySettings) -> Scale:
    """The scale a round opens with: T fixed, or kappa times the mean norm of earlier rounds."""
    mean = statistics.norms.mean if statistics.norms.count else None
    if not rules.enabled:
        return Scale(None)
    if rules.temperature is not None:
        return Scale(rules.temperature)
    return Scale((rules.kappa * mean) or None) if mean else Scale(None)


def weigh(scale: Scale, norm: float, step_ratio: float, step_power: float) -> Weight:
    """Weigh an accepted push of norm G; ``step_ratio`` is its inner steps over ``sync_every``."""
    steps = step_ratio**step_power
    if scale.temperature is None:
        return Weight(steps, 1.0, scale)
    reference = norm if scale.reference is None else scale.reference
    exponent = (reference - norm) / scale.temperature
    if exponent <= EXPONENT_MAX:
        return Weight(math.exp(exponent) * steps, 1.0, Scale(scale.temperature, reference))
    moved = Scale(scale.temperature, norm)
    return Weight(steps, math.exp(-exponent), moved)
