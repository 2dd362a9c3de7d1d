"""How long what could be folded now may wait for more, so that all are taken at once.

What waits holds room for pushes: so it waits no longer than a bound, and not while anybody is
short of room. Knows nothing of what waits; one loop owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from syncline_sync.budget import Budget

LINGER_S = 1.0
"""Replicas that push at the same time are within that of each other. Of those further apart the
first is folded meanwhile, when nobody waits for that."""


class Lingering:
    """One fragment's: between ``begin`` and ``end`` something waits."""

    def __init__(self, budget: Budget, enough: Callable[[], None]) -> None:
        """``enough`` is called when it has waited long enough, and not after ``end``."""
        self._budget, self._enough = budget, enough
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> bool:
        """Wait from now on, if nothing does already; False: it must not."""
        if self._timer is None:
            if not self._budget.when_wanted(self._enough):
                return False
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._enough)
        return True

    def end(self) -> None:
        """Nothing waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._budget.forget_wanted(self._enough)
