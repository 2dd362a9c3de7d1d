"""How long a training has to go, at the speed that it has had since it last stood still.

Pure: time comes in as seconds on one clock.
"""

from __future__ import annotations

STILL_TIMES = 10.0
"""So many times the usual time between two tellings is a standstill, if no round may take it."""


class Estimate:
    """Is told now and then how far it is."""

    def __init__(self, now: float, tokens: int, round_s: float) -> None:
        """``round_s`` is how long a round may take: to wait so long is a part of training."""
        self._round_s = round_s
        self._begin(now, tokens)

    def note(self, now: float, tokens: int) -> None:
        """It is so far now."""
        pause_s = now - self._now
        usual_s = (self._now - self._since) / self._count if self._count else pause_s
        if pause_s > max(self._round_s, STILL_TIMES * usual_s):
            self._begin(now, tokens)
            return
        self._now, self._done = now, tokens - self._before
        self._count += 1

    def left_s(self, budget: int) -> float | None:
        """Seconds to the budget; None where there is no saying, as just after a standstill."""
        if self._done <= 0:
            return None
        left = max(0, budget - self._before - self._done)
        return left * (self._now - self._since) / self._done

    def _begin(self, now: float, tokens: int) -> None:
        self._since = self._now = now
        self._before, self._done, self._count = tokens, 0, 0
