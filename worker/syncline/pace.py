"""A replica's pace, from what its heartbeats say; for loops that do not report their own.

Reads no clock: pauses of the run count for nothing because the seconds told leave them out.
"""

from __future__ import annotations

from collections import deque

from syncline_proto.rest import Progress

PACE_S = 30.0
"""A pace is taken over so long at least, once so long has passed."""


class Pace:
    """Tokens per second between heartbeats.

    Invariant: tokens and seconds both grow from mark to mark.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()
        """Tokens so far and seconds without pauses, where a heartbeat found new tokens."""

    def of(self, now: Progress) -> float | None:
        """Take in what a heartbeat says; None before a second one found new tokens.

        Between two long steps it stays what it was; a wait counts once training has gone on.
        """
        marks = self._marks
        if marks and now.wall_s < marks[0][1]:
            marks.clear()  # it has joined, and its time counts from there
        if not marks or (now.tokens > marks[-1][0] and now.wall_s > marks[-1][1]):
            marks.append((now.tokens, now.wall_s))
            while len(marks) > 2 and marks[1][1] <= now.wall_s - PACE_S:
                marks.popleft()
        (tokens, seconds), (tokens_now, seconds_now) = marks[0], marks[-1]
        return (tokens_now - tokens) / (seconds_now - seconds) if len(marks) > 1 else None
