"""What a push's age leaves of its weight, by the rule that the run names.

    polynomial   (1 + s)^-p                                  FedAsync (arXiv 1903.03934)
    cosine       e^(-alpha s) (1 + cos(pi min(s / S', 1))) / 2      CGAD's gate (arXiv 2605.09126)

s is the age, in rounds. Of a push that came late for its round it is in revisions. Without rounds
that wait a round is the N revisions of a window: and as each of N replicas of equal speed finds
N - 1 pushes of the others between its base and its own, only what is beyond these is age.

    s = max(0, revisions - (N - 1)) / N                                     N = 1 where rounds wait

S' is just past the age limit, so the gate closes where pushes are refused. 1 at s = 0, and never
more than for a younger push. Pure.
"""

from __future__ import annotations

import math

from syncline_proto.merging import LateSettings


def rounds_late(revisions: int, size: int) -> float:
    """The age of a push whose base lies so many revisions behind, in rounds of ``size``."""
    return max(0, revisions - size + 1) / size


def oldest(limit: int, size: int) -> int:
    """How many revisions a push's base may lie behind that is to be no older than ``limit``."""
    return limit * size + size - 1


def age_factor(rules: LateSettings, age: float, limit: float) -> float:
    """What is left at this age; ``limit`` is the oldest that is taken."""
    if rules.rule == "polynomial":
        return (1.0 + age) ** -rules.power
    gate = 0.5 * (1.0 + math.cos(math.pi * min(age / (limit + 1.0), 1.0)))
    return math.exp(-rules.decay * age) * gate
