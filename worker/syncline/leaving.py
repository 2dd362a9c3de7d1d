"""How a replica leaves a run that goes on: with its last steps, if a round takes them in time.

Runs on the training thread, in the same order on every rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from structlog.typing import FilteringBoundLogger

from syncline.pushes import Pushes
from syncline.rounds import Rounds
from syncline.waiting import TookTooLong

LAST_PUSHES_MAX = 3
"""Pushes of a replica that leaves, if they keep coming late."""


class Leaving:
    """One replica's last pushes."""

    def __init__(
        self, rounds: Rounds, pushes: Pushes, limit_s: float, log: FilteringBoundLogger
    ) -> None:
        """``limit_s`` is how long a round may take; ``log`` is silent on all ranks but the first.

        Who was asked to leave has that time for all of it, from when that was heard (``Helm``).
        """
        self._rounds, self._pushes, self._limit_s, self._log = rounds, pushes, limit_s, log

    def bring_in(self, is_at_end: Callable[[], bool]) -> None:
        """Push what was done since the last sync, and merge it, late parts again.

        ``is_at_end`` is asked after each merge: whether there is nothing more to push.

        Raises:
            RunOver, SynclineError: as ``Rounds.merge`` does.
        """
        with suppress(TookTooLong):
            self._push_the_rest(time.monotonic() + self._limit_s, is_at_end)
        self.give_up()

    def give_up(self) -> None:
        """Leave what no round has taken, and say so; pushes that have arrived may yet count."""
        left = self._rounds.forget()
        if left:
            why = f"no round with the last steps was published within {self._limit_s:g} s"
            self._log.warning("leave.early", why=why, fragments=left)

    def _push_the_rest(self, until: float, is_at_end: Callable[[], bool]) -> None:
        for _ in range(LAST_PUSHES_MAX):
            self._rounds.merge_all(until)
            self._rounds.heal()
            if is_at_end() or not self._rounds.are_unpushed:
                return
            self._pushes.push(0, everything=True)
        self._rounds.merge_all(until)
        is_at_end()
