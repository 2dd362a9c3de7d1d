"""Who is an anomaly: norms of one fragment's pushes against those of earlier rounds.

Pure. Statistics are values; a round's pushes are judged with the statistics it opened with and
enter them together at its close, in the order of replica ids, so the order of arrival never
matters. Only accepted norms are fed: an outlier cannot teach the detector to let it pass.

Source: EDiT (arXiv 2412.07210), anomaly elimination. Differs from it: bias-corrected averages, a
floor under the deviation, a ratio beside the z-score, and rules against locking a replica out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from syncline_proto.merging import PenaltySettings
from syncline_proto.settings import RunSettings

POOLED_PUSHES_MIN = 3
"""Accepted pushes before ``ratio_max`` counts."""

EXCLUSIONS_MAX = 3
"""Finite exclusions in a row after which a replica's statistics start anew."""

BAD_ROUNDS_MAX = 2
"""Rounds in a row in which most pushes were finite and excluded: after these the fragment's
statistics start anew, if most replicas, too, were excluded that often in a row."""

DEVIATION_FLOOR = 0.05
"""Smallest deviation, in means: replicas that agree to a hair must not exclude each other."""

NORM_LIMIT = 1e20
"""A norm over this is as good as infinite: weighed and summed it could leave fp32's range."""


@dataclass(frozen=True, slots=True)
class Ema:
    """Bias-corrected exponential averages of a number and of its square (float64)."""

    count: int = 0
    first: float = 0.0
    second: float = 0.0
    bias: float = 1.0
    """(1 - alpha) ** count."""

    def fed(self, x: float, alpha: float) -> Ema:
        return Ema(
            self.count + 1,
            self.first + alpha * (x - self.first),
            self.second + alpha * (x * x - self.second),
            self.bias * (1.0 - alpha),
        )

    @property
    def mean(self) -> float:
        return self.first / (1.0 - self.bias) if self.count else 0.0

    @property
    def deviation(self) -> float:
        if not self.count:
            return 0.0
        return math.sqrt(max(self.second / (1.0 - self.bias) - self.mean**2, 0.0))


@dataclass(frozen=True, slots=True)
class ReplicaNorms:
    """One replica's own statistics; ``excluded`` are its last finite norms, if all were bad."""

    ema: Ema = Ema()
    rounds: int = 0
    """Accepted pushes; a joiner starts with the fragment's rounds."""
    excluded: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Statistics:
    """Everything that one fragment remembers of norms."""

    pooled: Ema = Ema()
    """Of x = G / sqrt(inner steps), over all accepted pushes."""
    norms: Ema = Ema()
    """Of G itself: the scale of the weights' temperature."""
    rounds: int = 0
    """Closed rounds in which a push was accepted."""
    bad_rounds: int = 0
    replicas: Mapping[str, ReplicaNorms] = field(default_factory=dict[str, ReplicaNorms])

    def of(self, replica: str) -> ReplicaNorms:
        """The replica's statistics, or for one without any the pooled ones."""
        return self.replicas.get(replica) or ReplicaNorms(self.pooled, self.rounds)

    def of_new_lives(self) -> Statistics:
        """The same averages, where the optimizers of all replicas begin anew.

        Their first pushes are longer than usual, so nobody's z-score counts before
        ``detector_rounds`` of its pushes have been accepted; ``ratio_max`` counts at once.
        """
        lives = {name: ReplicaNorms(own.ema) for name, own in self.replicas.items()}
        return Statistics(self.pooled, self.norms, replicas=lives)


@dataclass(frozen=True, slots=True)
class Finding:
    """What the detector says of one push, and why in one sentence (empty if it is good)."""

    bad: bool
    z: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """One judged push of the round that closes."""

    replica: str
    norm: float
    inner_steps: int
    bad: bool
    age: int = 0
    """Revisions by which its base is late; its late push and its next may be in one round."""


def is_finite(norm: float) -> bool:
    """Whether a push of this norm can be computed with in fp32; NaN and inf cannot."""
    return norm <= NORM_LIMIT


def unfit(norm: float) -> str:
    """Why a push of this norm cannot be computed with, in words; empty if it can."""
    if is_finite(norm):
        return ""
    if math.isfinite(norm):
        return f"its norm {norm:.4g} is over {NORM_LIMIT:g}, more than fp32 has room to sum"
    return "its values are not finite"


def of_gradient(norm: float) -> Finding:
    """What is found of a gradient of the synchronous phase: nobody knows what is usual there."""
    why = unfit(norm)
    return Finding(bool(why), 0.0, why)


def scaled(norm: float, inner_steps: int) -> float:
    """x = G / sqrt(n): what the detector compares, whatever the number of inner steps."""
    return norm / math.sqrt(inner_steps)


def inspect(
    statistics: Statistics, rules: PenaltySettings, replica: str, norm: float, inner_steps: int
) -> Finding:
    """Judge a whole push of norm G with the statistics of earlier rounds.

    A push that is not finite is bad whatever the settings: 0 * inf must never reach an accumulator.
    """
    if not is_finite(norm):
        return Finding(True, math.nan, unfit(norm))
    own = statistics.of(replica)
    x, mean = scaled(norm, inner_steps), own.ema.mean
    floor = max(own.ema.deviation, DEVIATION_FLOOR * mean)
    # After hundreds of norms of 0 a mean is 0 before the squares' is: who deviates, nobody knows.
    z = (x - mean) / floor if mean > 0.0 and floor > 0.0 else 0.0
    if not rules.enabled:
        return Finding(False, z)
    if rules.norm_max is not None and norm > rules.norm_max:
        return Finding(True, z, f"its norm {norm:.4g} is over norm_max {rules.norm_max:.4g}")
    pooled = statistics.pooled
    if pooled.count >= POOLED_PUSHES_MIN and 0.0 < rules.ratio_max * pooled.mean < x:
        return Finding(
            True, z, f"its norm is {x / pooled.mean:.1f} times the mean of all (over ratio_max)"
        )
    if own.rounds >= rules.detector_rounds and z > rules.z_max and x > rules.ratio_min * mean:
        return Finding(True, z, f"its norm is {x / mean:.1f} times its own mean (z {z:.1f})")
    return Finding(False, z)


def closed(
    statistics: Statistics,
    rules: PenaltySettings,
    seen: Sequence[Seen],
    taking_part: Collection[str] = (),
) -> tuple[Statistics, tuple[str, ...]]:
    """Return the statistics after a round, and what is worth telling of it (sentences).

    ``taking_part`` are the fragment's replicas, whether or not they are in the round.
    """
    seen = sorted(seen, key=lambda push: (push.replica, -push.age))
    good = [push for push in seen if not push.bad]
    finite_bad = [push for push in seen if push.bad and is_finite(push.norm)]
    bad_rounds = statistics.bad_rounds + 1 if 2 * len(finite_bad) > len(seen) else 0
    replicas = dict(statistics.replicas)
    pooled, norms = statistics.pooled, statistics.norms
    for push in good:
        x = scaled(push.norm, push.inner_steps)
        own = replicas.get(push.replica) or statistics.of(push.replica)
        replicas[push.replica] = ReplicaNorms(own.ema.fed(x, rules.ema), own.rounds + 1)
        pooled, norms = pooled.fed(x, rules.ema), norms.fed(push.norm, rules.ema)
    for push in finite_bad:
        own = replicas.get(push.replica) or statistics.of(push.replica)
        last = (*own.excluded, scaled(push.norm, push.inner_steps))[-EXCLUSIONS_MAX:]
        replicas[push.replica] = replace(own, excluded=last)
    everyone = {*taking_part, *(push.replica for push in seen)}
    if bad_rounds >= BAD_ROUNDS_MAX and _most_excluded(replicas, everyone):
        return Statistics(), (
            f"most pushes were excluded in {BAD_ROUNDS_MAX} rounds in a row: norms are learnt anew",
        )
    told: list[str] = []
    for replica in dict.fromkeys(push.replica for push in finite_bad):
        last = replicas[replica].excluded
        near = all(x <= rules.ratio_max * pooled.mean for x in last)
        if len(last) == EXCLUSIONS_MAX and near:
            replicas[replica] = _restarted(last, rules)
            told.append(f"{replica} was excluded {EXCLUSIONS_MAX} times: its norm is learnt anew")
    rounds = statistics.rounds + bool(good)
    return Statistics(pooled, norms, rounds, bad_rounds, replicas), tuple(told)


def _most_excluded(replicas: Mapping[str, ReplicaNorms], everyone: Collection[str]) -> bool:
    """Whether of most replicas the last ``BAD_ROUNDS_MAX`` pushes were all excluded.

    Rounds alone do not tell where one may close with few pushes, or with one: those may be all of
    a single replica, which is not to teach the fragment its norm.
    """
    excluded = [
        r for r in everyone if r in replicas and len(replicas[r].excluded) >= BAD_ROUNDS_MAX
    ]
    return 2 * len(excluded) > len(everyone)


def _restarted(last: Sequence[float], rules: PenaltySettings) -> ReplicaNorms:
    ema = Ema()
    for x in last:
        ema = ema.fed(x, rules.ema)
    return ReplicaNorms(ema, len(last))


def measured(settings: RunSettings) -> str:
    """What norms depend on: those of pushes that differ in it cannot be compared."""
    every = settings.sync_every if settings.sync_seconds is None else f"{settings.sync_seconds:g}s"
    return f"{settings.codec.up} {every} {settings.strategy}"
