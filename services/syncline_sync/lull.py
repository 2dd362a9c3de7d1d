"""When no values move: what need not be done at once waits for that, but not for long.

A revision that was published before it is written (``durability = "async"``) is still to be pulled
by its replicas, and other fragments' pushes are on their way: written meanwhile it took a fifth of
the service's processor time in a round, where nobody waits for it. Decides nothing but when.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

QUIET_S = 0.1
"""Once no chunk has moved for so long, nothing moves: replicas have what they waited for."""

LATEST_S = 1.0
"""The longest wait, where there is always something that moves."""


class Lull:
    """Of one process; it hears of every chunk."""

    def __init__(self) -> None:
        self._moved_s = -math.inf

    def moved(self) -> None:
        """A chunk has come, or goes."""
        self._moved_s = time.monotonic()

    @property
    def begins_s(self) -> float:
        """When nothing will have moved for long enough, if nothing more does (monotonic)."""
        return self._moved_s + QUIET_S

    async def wait(self, hurry: asyncio.Event) -> None:
        """Until nothing moves, or it has been long enough; or it is to be at once, by ``hurry``."""
        latest_s = time.monotonic() + LATEST_S
        while not hurry.is_set():
            left_s = min(self.begins_s, latest_s) - time.monotonic()
            if left_s <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await hurry.wait()
