"""A replica's pace, from what its heartbeats say; for loops that do not report their own.

Reads no clock: pauses of the run count for nothing because the seconds told leave them out.
"""

from __future__ import annotations

from collections import deque

from syncline_proto.rest import Progress

PACE_S = 30.0
"""A pace is taken over so long at least, once so long has passed."""
MARKS_MAX = 1000
"""So many heartbeats at most: of one who only waits, seconds of its own are long in coming."""


class Pace:
    """Tokens per second between heartbeats.

    Invariant: what is counted and seconds both grow from mark to mark.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque(maxlen=MARKS_MAX)
        """What was counted so far and the seconds, where a heartbeat found more."""

    def of(self, now: Progress) -> float | None:
        """Take in what a heartbeat says; None before a second one found new tokens.

        Between two long steps it stays what it was; a wait counts once training has gone on.
        """
        return self._over(now.tokens, now.wall_s)

    def _over(self, count: int, seconds: float) -> float | None:
        """So many a second, where ``count`` have come in ``seconds`` so far."""
        marks = self._marks
        if marks and seconds < marks[0][1]:
            marks.clear()  # it has joined, and its time counts from there
        if not marks or (count > marks[-1][0] and seconds > marks[-1][1]):
            marks.append((count, seconds))
            while len(marks) > 2 and marks[1][1] <= seconds - PACE_S:
                marks.popleft()
        (before, since), (after, until) = marks[0], marks[-1]
        return (after - before) / (until - since) if len(marks) > 1 else None


class StepRate(Pace):
    """Inner steps per second of a replica's own time, without what it waits for others."""

    def __init__(self) -> None:
        super().__init__()
        self._last: float | None = None
        self._has_rounds = False
        """There is a revision that a round has made, or the end of the synchronous phase."""

    def of(self, now: Progress) -> float | None:
        """Take in what a heartbeat says, which counts a wait as it goes on.

        So who waits for most of its time is measured as soon as anybody. Its waits in the
        synchronous phase look like all others, and steps there take longer, as each sends its
        gradients: of them nothing is kept once there are rounds.
        """
        if now.phase in ("training", "waiting"):
            if now.revision and not self._has_rounds:
                self._has_rounds = True
                self._marks.clear()
            self._last = self._over(now.inner_step, now.wall_s - now.exposed_sync_s)
        return self._last
