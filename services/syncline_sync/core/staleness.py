"""What a push's age leaves of its weight, by the rule that the run names.

    polynomial   (1 + s)^-p                                  FedAsync (arXiv 1903.03934)
    cosine       e^(-alpha s) (1 + cos(pi min(s / S', 1))) / 2      CGAD's gate (arXiv 2605.09126)

s is the age: of a push that came late for its round in revisions, without rounds that wait in
rounds of N revisions. S' is just past the age limit, so the gate closes where pushes are refused.
1 at s = 0, and never more than for a younger push. Pure.
"""

from __future__ import annotations

import math

from syncline_proto.merging import LateSettings


def age_factor(rules: LateSettings, age: float, limit: float) -> float:
    """What is left at this age; ``limit`` is the oldest that is taken."""
    if rules.rule == "polynomial":
        return (1.0 + age) ** -rules.power
    gate = 0.5 * (1.0 + math.cos(math.pi * min(age / (limit + 1.0), 1.0)))
    return math.exp(-rules.decay * age) * gate
