"""Who in a line may begin to send: a few at a time, in order, and nobody holds the others up.

Pure: who calls says what time it is.

Why ranks cannot wait for one another in it. The service judges a push when the bytes of all its
ranks are in; it gives room to whole pushes, of a replica in the order of their first headers, and
reads whatever has room. A rank's turn ends with its last byte, not with the verdict, so who has a
turn waits for the wire or for room. While anything moves, turns end, since pushes are finite. When
nothing moves, those who have a turn wait for room; they count no more, and the next ones begin. So
in the end every rank has begun the push that has room, its bytes come in, and its room goes to the
next.
"""

from __future__ import annotations

import bisect
import math


class Turn:
    """Of one who has begun."""

    __slots__ = ()


class Line:
    """Places are numbers; the smaller one goes first.

    Invariant: who begins leaves fewer than ``width`` who move or stand ahead of it.
    """

    def __init__(self, width: int, idle_s: float) -> None:
        """``idle_s``: the line stands still when nothing has moved for so long."""
        self._width, self._idle_s = width, idle_s
        self._waiting: list[int] = []
        """In order. Thousands may wait, one for each fragment."""
        self._begun: set[Turn] = set()
        self._moving: set[Turn] = set()
        """Of the begun, all but those who had begun when the whole line stood still, and have not
        moved since."""
        self._moved_at = -math.inf

    def join(self, place: int) -> None:
        """Wait at a place, if not there already."""
        at = bisect.bisect_left(self._waiting, place)
        if self._waiting[at : at + 1] != [place]:
            self._waiting.insert(at, place)

    def leave(self, place: int) -> None:
        """Wait no longer."""
        at = bisect.bisect_left(self._waiting, place)
        if self._waiting[at : at + 1] == [place]:
            del self._waiting[at]

    def first(self) -> list[int]:
        """Those who may be next: nobody else can begin before one of them has, or has left."""
        return self._waiting[: self._width]

    def begin(self, place: int, now_s: float) -> Turn | None:
        """Give the one at a place its turn, if that has come."""
        if now_s - self._moved_at >= self._idle_s:
            self._moving.clear()
        ahead = bisect.bisect_left(self._waiting, place)
        if len(self._moving) + ahead >= self._width:
            return None
        del self._waiting[ahead]
        turn = Turn()
        self._begun.add(turn)
        self._moving.add(turn)
        self._moved_at = now_s
        return turn

    def move(self, turn: Turn, now_s: float) -> None:
        """Something of it went out."""
        if turn in self._begun:
            self._moving.add(turn)
            self._moved_at = now_s

    def end(self, turn: Turn) -> None:
        """It has sent all, or failed."""
        self._begun.discard(turn)
        self._moving.discard(turn)
