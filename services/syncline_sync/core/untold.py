"""Rounds of a fragment that the control plane may not have heard of, as texts. Pure.

Each round's report is kept with its own commit, and with those that follow until it is settled: so
whatever a kill leaves is told again at the next start. To tell a round twice is to tell it once.
"""

from __future__ import annotations

from collections import deque

UNTOLD_CHARACTERS_MAX = 1 << 18
"""Of the reports of earlier rounds: commits must not grow for as long as nobody listens."""


class Untold:
    """One fragment's untold rounds."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, str]] = deque()
        """(ticket, report), oldest first."""
        self._characters = 0

    def told(self, ticket: int, report: str) -> None:
        """A report is on its way; tickets grow. Beyond the bound the oldest are forgotten."""
        self._waiting.append((ticket, report))
        self._characters += len(report)
        while self._characters > UNTOLD_CHARACTERS_MAX:
            self._forget_oldest()

    def kept(self, settled: int, newest: str) -> tuple[str, ...]:
        """What goes with a commit: ``newest`` is its own round's, which is told after it.

        Tickets below ``settled`` need not be told again.
        """
        while self._waiting and self._waiting[0][0] < settled:
            self._forget_oldest()
        return (*(report for _, report in self._waiting), newest)

    def _forget_oldest(self) -> None:
        _, report = self._waiting.popleft()
        self._characters -= len(report)
