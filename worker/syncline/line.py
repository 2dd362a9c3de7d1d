"""The line in which one rank's pushes wait to be sent; core/line says whose turn it is.

Nothing is held over a wait for others: a turn ends with the last byte, or with the call. Of those
who wait only the first few look whether their turn has come, and are told when it may have: there
may be thousands, each in a thread of its own.
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
        self._lock = threading.Lock()
        self._asleep: dict[int, threading.Condition] = {}
        """By place: those who wait for a turn in a thread."""
        self._closed = False

    def close(self) -> None:
        """Nobody gets a turn any more."""
        with self._lock:
            self._closed = True
            for place in self._asleep.values():
                place.notify()

    def join(self) -> Place:
        """Take the next place; it is to be left, whatever comes of it."""
        with self._lock:
            place = Place(next(self._numbers))
            self._line.join(place.number)
            return place

    def leave(self, place: Place) -> None:
        with self._lock:
            self._line.leave(place.number)
            self._wake()

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
        with self._lock:
            self._line.move(turn, time.monotonic())

    def end(self, turn: Turn) -> None:
        with self._lock:
            self._line.end(turn)
            self._wake()

    def _wait(self, place: Place) -> Turn:
        began, number = time.monotonic(), place.number
        with self._lock:
            self._line.join(number)
            told = self._asleep[number] = threading.Condition(self._lock)
            try:
                while not self._closed:
                    now = time.monotonic()
                    if turn := self._line.begin(number, now):
                        place.waited_s += now - began
                        return turn
                    # Who is among the first may begin once nothing has moved for long.
                    told.wait(self._idle_s / 2 if number in self._line.first() else None)
            finally:
                del self._asleep[number]
                self._wake()
        raise Unreachable("The replica is leaving.")

    def _wake(self) -> None:
        """Those who may be next now are to look; call it when some have gone."""
        for number in self._line.first():
            if told := self._asleep.get(number):
                told.notify()


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
