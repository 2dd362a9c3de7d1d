"""How long a worker waits for others: one retry policy, one limit for rounds.

Every wait here has a bound and can be ended at once by an event.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from syncline.outage import Outage
from syncline_proto.errors import ChunkDamaged, Overloaded, Unreachable
from syncline_proto.settings import TimeoutSettings

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 1.0
"""Of the pauses between two attempts: a service that comes back is found within a second or so."""

PASSING = (Unreachable, Overloaded, ChunkDamaged)
"""After which the same call may go well."""

Value = TypeVar("Value")


def patiently(
    act: Callable[[], Value],
    give_up_s: float,
    stop: Event,
    excused_s: Callable[[], float] = lambda: 0.0,
    outage: Outage | None = None,
) -> Value:
    """Do ``act`` until the peer answers: exponential backoff with full jitter.

    A loop of our own: a library's keeps the last error while it pauses, and that has the frames of
    the call, and what was sent in it.

    ``excused_s`` is how much of the time so far was not the peer's to answer in; ``outage`` tells
    of a peer that is away (None: nobody needs to be told).

    Raises:
        Unreachable, Overloaded, ChunkDamaged: the last answer, ``give_up_s`` after the first
            attempt or once ``stop`` is set.
    """
    began, pause_s = time.monotonic(), BACKOFF_S_MIN
    while True:
        try:
            if outage is None or stop.is_set():
                return act()
            with outage.noted():
                return act()
        except PASSING:
            if stop.is_set() or time.monotonic() - began - excused_s() >= give_up_s:
                raise
        stop.wait(random.uniform(0.0, pause_s))
        pause_s = min(2.0 * pause_s, BACKOFF_S_MAX)


class Pauses:
    """How long a run has stood still, as one thread tells and any thread may read."""

    def __init__(self) -> None:
        self._told: tuple[float, float | None] = (0.0, None)
        """Seconds of the pauses that are over, and when the present one began; replaced whole."""

    @property
    def is_on(self) -> bool:
        return self._told[1] is not None

    @property
    def seconds(self) -> float:
        over_s, since = self._told
        return over_s if since is None else over_s + time.monotonic() - since

    def set(self, is_on: bool) -> None:
        """The run is paused from here on, or it is not."""
        if is_on != self.is_on:
            self._told = (self.seconds, time.monotonic() if is_on else None)


class RoundPatience:
    """How long to wait, from now on, for a round that does not close.

    2 round_deadline_s + give_up_s, without the time in which the run is paused.
    """

    def __init__(self, timeouts: TimeoutSettings, paused_s: Callable[[], float]) -> None:
        """``paused_s`` is how long the run has been paused so far, whatever it counts from."""
        self.limit_s = 2 * timeouts.round_deadline_s + timeouts.give_up_s
        self._left_s = self.limit_s
        self._paused_s = paused_s
        self._seen, self._seen_paused_s = time.monotonic(), paused_s()

    def start_again(self) -> None:
        """Something has moved: the whole time is there once more."""
        self._left_s = self.limit_s

    def check(self, what: str) -> None:
        """Raise, if the time is over.

        Raises:
            Unreachable: it is over, and the round of ``what`` has not closed.
        """
        if self._is_over():
            raise Unreachable(
                f"The round of {what} has not closed for {self.limit_s:g} s; see whether enough "
                "replicas take part (min_replicas), then start this one again."
            )

    def check_fetching(self, what: str) -> None:
        """Raise, if the time is over while revisions are fetched.

        Raises:
            Unreachable: it is over, and rounds of ``what`` close faster than they can be fetched.
        """
        if self._is_over():
            raise Unreachable(
                f"Revisions of {what} were replaced before they could be fetched, for "
                f"{self.limit_s:g} s; the line to the sync service is too slow for this "
                "sync_every or sync_seconds: raise it, then start this replica again."
            )

    def _is_over(self) -> bool:
        """Count the time since the last look; whether too much of it has passed."""
        now, paused_s = time.monotonic(), self._paused_s()
        self._left_s -= (now - self._seen) - (paused_s - self._seen_paused_s)
        self._seen, self._seen_paused_s = now, paused_s
        return self._left_s < 0
