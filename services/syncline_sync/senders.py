"""Whose turn it is to send: so many pulls make and send chunks at a time, all others wait.

A chunk that its reader does not take is in memory several times over, here and in gRPC; so what
slow readers cost is bounded by turns. These are short, so that many slow readers all move, and
runs have them alike, whoever has more readers: a run has at most half of what the others leave. So
a run whose readers take nothing is in no other's way. Each of several such runs may halve what is
left: of 128 turns seven of them leave one, and eight may leave none until the first of their pulls
is cut. A pull that is cut gives its turn to the run that has the fewest. But its call ends only
when its reader takes what was sent before, or goes away: a run with too many calls that cannot end
gets no more turns meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from syncline_proto.errors import Overloaded
from syncline_sync.budget import Budget

SENDERS_MAX = 128
"""With their chunks of 1 MiB, twice in memory, they hold 256 MiB at worst.

Half the chunk and twice the turns would hold as much; but gRPC alone takes 10 to 15 % more CPU for
the same bytes in halves, here and at the reader's.

Cut pulls that cannot end come on top, see ``ENDING_MAX``.
"""

ENDING_MAX = 64
"""Cut pulls of a run that cannot end; those that have a turn when it is reached may join them.

They keep what gRPC has of them, less than 2 MiB each: 128 MiB a run at worst.
"""

TURN_S = 1.0
"""A turn ends with the first chunk that is taken after this."""


class Senders:
    """The turns of one process's pulls."""

    def __init__(self, senders_max: int, ending_max: int) -> None:
        self._turns = Budget(senders_max)
        self._ending_max = ending_max
        self._ending: Counter[str] = Counter()
        """By run: pulls whose readers are still to take their end; runs without are not in it."""

    @asynccontextmanager
    async def turn(self, run: str) -> AsyncGenerator[float]:
        """Wait for a turn, and have it to the end of the block: when (monotonic s) it should end.

        Raises:
            Overloaded: too many wait already, or too many of the run's pulls cannot end.
        """
        async with self._turns.reserved(run, 1):
            if self._ending[run] >= self._ending_max:
                raise Overloaded(
                    f"Run {run} has {self._ending_max} pulls that were cut and whose readers take "
                    "nothing; end those, or try later."
                )
            yield time.monotonic() + TURN_S

    @contextmanager
    def ending(self, run: str) -> Generator[None]:
        """While a call is told in the block that it is over; that waits for its reader, too."""
        self._ending[run] += 1
        try:
            yield
        finally:
            self._ending[run] -= 1
            if not self._ending[run]:
                del self._ending[run]
