"""The line in which one rank's pushes wait to be sent; core/line says whose turn it is.

Nothing is held over a wait for others: a turn ends with the last byte, or with the call.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from syncline.core.line import Line, Turn
from syncline_proto.errors import Unreachable


@dataclass(slots=True)
class Place:
    """One push's, for all its attempts."""

    number: int
    waited_s: float = 0.0
    """How long it has waited for its turns."""


class PushLine:
    """All methods may be called from any thread."""

    def __init__(self, width: int, idle_s: float) -> None:
        """``width`` may send at a time; more if nothing has moved for ``idle_s``."""
        self._line, self._idle_s = Line(width, idle_s), idle_s
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False

    def close(self) -> None:
        """Nobody gets a turn any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self) -> Place:
        """Take the next place; it is to be left, whatever comes of it."""
        with self._changed:
            place = Place(next(self._numbers))
            self._line.join(place.number)
            return place

    def leave(self, place: Place) -> None:
        with self._changed:
            self._line.leave(place.number)
            self._changed.notify_all()

    @contextmanager
    def turn(self, place: Place) -> Iterator[Sending]:
        """Wait for a turn, and have it until all is sent, or to the end of the block.

        Raises:
            Unreachable: the line was closed.
        """
        sending = Sending(self, self._wait(place))
        try:
            yield sending
        finally:
            sending.ended()

    def move(self, turn: Turn) -> None:
        with self._changed:
            self._line.move(turn, time.monotonic())

    def end(self, turn: Turn) -> None:
        with self._changed:
            self._line.end(turn)
            self._changed.notify_all()

    def _wait(self, place: Place) -> Turn:
        began = time.monotonic()
        with self._changed:
            self._line.join(place.number)
            while not self._closed:
                now = time.monotonic()
                if turn := self._line.begin(place.number, now):
                    place.waited_s += now - began
                    return turn
                self._changed.wait(self._idle_s / 2)
        raise Unreachable("The replica is leaving.")


@dataclass(frozen=True, slots=True)
class Sending:
    """A turn, for who sends to tell how it goes; what comes after its end changes nothing."""

    _line: PushLine
    _turn: Turn

    def moved(self) -> None:
        """The line had room for something more."""
        self._line.move(self._turn)

    def ended(self) -> None:
        """All is sent."""
        self._line.end(self._turn)
