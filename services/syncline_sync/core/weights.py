"""How much a push counts: less, the larger its norm (EDiT's weighting, arXiv 2412.07210).

    w = exp(-G / T) * (n / H) ** rho            float64; the merge divides by their sum

Pure. Only ratios of weights matter, so they are counted from a reference: the round's first
accepted push has weight 1. Where one would leave the range, its push becomes the reference and what
is already in the accumulator is scaled down instead: so weights never depend on the order of
arrival, whatever the norms and steps. (A clamp of the exponent around a reference from earlier
rounds would make them equal, or all zero, where norms have moved far from it.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from syncline_proto.merging import PenaltySettings
from syncline_sync.core.detector import Statistics

EXPONENT_MAX = 30.0
"""e**30 is 1e13: far from overflow in fp32, where the accumulator lives."""

WEIGHT_MIN = 2.0**-126
"""Of a push that counts, whatever its norm and age leave of it; the least that fp32 multiplies by
in full. So every such push is folded. More than its part of the sum may hang on that: what the sum
holds shrinks as it comes (``rescale``), and at a window's beginning and end it moves the momentum.
"""


@dataclass(frozen=True, slots=True)
class Reference:
    """The push that has weight 1: its norm, and the logarithm of its steps' factor."""

    norm: float
    log_steps: float


@dataclass(frozen=True, slots=True)
class Scale:
    """The round's temperature and reference; ``temperature`` None means that norms do not count."""

    temperature: float | None
    reference: Reference | None = None


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
    """Weigh an accepted push of norm G; ``step_ratio`` > 0: its inner steps over ``sync_every``."""
    mine = Reference(norm, step_power * math.log(step_ratio))
    reference = scale.reference or mine
    exponent = mine.log_steps - reference.log_steps
    if scale.temperature is not None:
        exponent += (reference.norm - norm) / scale.temperature
    if exponent <= EXPONENT_MAX:
        return Weight(math.exp(exponent), 1.0, Scale(scale.temperature, reference))
    return Weight(1.0, math.exp(-exponent), Scale(scale.temperature, mine))
