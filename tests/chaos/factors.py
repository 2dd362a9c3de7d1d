"""How much each push of a round must count: docs/protocol.md once more, with norms taken here.

The factors that the store has recorded make the bits of a merge (``reference.py``); that they are
the right ones is found out here. Shares no code with the service.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from chaos.reference import Folded
from syncline_proto.merging import PenaltySettings

NORM_DIGITS = 2e-6
"""Norms have six digits."""

LEAST, MOST = 2.0**-126, 2.0
"""What a push that counts is multiplied by at least; and at most one that is a revision by itself,
whatever its age takes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A push that counts, and what its part follows from."""

    replica: str
    folded: Folded
    inner_steps: int
    age: int

    @property
    def norm(self) -> float:
        return math.sqrt(float(np.sum(np.square(self.folded.values, dtype=np.float64))))


@dataclass(slots=True)
class Factors:
    """Of one fragment: the pushes of each revision are entered once, in turn."""

    rules: PenaltySettings
    sync_every: int
    window: int | None = None
    """Of a run whose rounds do not wait."""
    _first: float = field(default=0.0, init=False)
    _bias: float = field(default=1.0, init=False)
    """The mean norm is the first over 1 less the second."""
    _recent: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]], init=False)
    """Norm and inner steps of the last pushes, as many as a window has."""

    def enter(self, pushes: Sequence[Measured]) -> None:
        """See that the accepted pushes of a revision count as they must, in the order of folding.

        Raises:
            AssertionError: one counts for more than it must, or for less.
        """
        norms = [push.norm for push in pushes]
        if self.window is None:
            self._see_round(pushes, norms)
        else:
            for push, norm in zip(pushes, norms, strict=True):
                self._see_alone(push, norm)
        # Fed by replica; of two pushes of one the late one first.
        order = sorted(range(len(pushes)), key=lambda i: (pushes[i].replica, -pushes[i].age))
        for i in order:
            self._first += self.rules.ema * (norms[i] - self._first)
            self._bias *= 1.0 - self.rules.ema

    @property
    def temperature(self) -> float:
        """T; endless where norms do not count."""
        if not self.rules.enabled:
            return math.inf
        if self.rules.temperature is not None:
            return self.rules.temperature
        mean = self._first / (1.0 - self._bias) if self._bias < 1.0 else 0.0
        return self.rules.kappa * mean or math.inf

    def _see_round(self, pushes: Sequence[Measured], norms: Sequence[float]) -> None:
        """Only ratios count; and what is in a sum shrinks with it."""
        shrunk, least, most = 0.0, -math.inf, math.inf
        for push, norm in zip(reversed(pushes), reversed(norms), strict=True):
            one, ours = push.folded, self._log(norm, push.inner_steps)
            if shrunk == -math.inf:
                assert ours + most < math.log(LEAST), "what counts is gone from the sum"
                continue
            off = math.log(one.folded / one.kept) + shrunk - ours
            near = NORM_DIGITS * (1.0 + norm / self.temperature)
            least = max(least, off - near) if one.folded > LEAST else least
            most = min(most, off + near)
            shrunk += math.log(one.rescale) if one.rescale else -math.inf
        assert least <= most, f"one counts for e^{least - most:.1e} times too much"

    def _see_alone(self, push: Measured, norm: float) -> None:
        """Beside the last pushes, with the temperature of now."""
        assert self.window is not None
        logs = [self._log(*of) for of in (*self._recent, (norm, push.inner_steps))]
        parts = [math.exp(log - logs[-1]) for log in logs]
        ours = max(LEAST, push.folded.kept * min(MOST, len(parts) / math.fsum(parts)))
        loudest = max(g for g, _ in (*self._recent, (norm, 0)))
        near = NORM_DIGITS * (1.0 + loudest / self.temperature)
        assert push.folded.rescale == 1.0, "there is no sum that could shrink"
        assert math.isclose(push.folded.folded, ours, rel_tol=near), f"{push.folded}, not {ours}"
        self._recent = [*self._recent, (norm, push.inner_steps)][-self.window :]

    def _log(self, norm: float, inner_steps: int) -> float:
        steps = inner_steps / self.sync_every
        return self.rules.step_power * math.log(steps) - norm / self.temperature
