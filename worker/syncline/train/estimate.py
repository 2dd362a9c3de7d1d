"""How long a training has to go, at the speed that it has had since it last stood still.

Pure: time comes in as seconds on one clock.
"""

from __future__ import annotations

STILL_TIMES, STILL_S = 10.0, 10.0
"""No token for so many times the usual time, and for so long, is a standstill: a service away."""


class Estimate:
    """Is told now and then how far it is."""

    def __init__(self, now: float, tokens: int) -> None:
        self._begin(now, tokens)

    def left_s(self, now: float, tokens: int, budget: int) -> float | None:
        """Seconds to the budget; None where there is no saying, as just after a standstill."""
        still_s = now - self._told_at
        usual_s = (self._told_at - self._since) / self._count if self._count else still_s
        if still_s > max(STILL_S, STILL_TIMES * usual_s):
            self._begin(now, tokens)
            return None
        self._told_at = now
        self._count += 1
        done = tokens - self._tokens
        return max(0, budget - tokens) * (now - self._since) / done if done > 0 else None

    def _begin(self, now: float, tokens: int) -> None:
        self._since = self._told_at = now
        self._tokens = tokens
        self._count = 0
