"""How long a worker waits for others: one retry policy, one limit for rounds.

Every wait here has a bound and can be ended at once by an event.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from tenacity import (
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_random_exponential,
)

from syncline_proto.errors import Overloaded, Unreachable
from syncline_proto.settings import TimeoutSettings

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 5.0

Value = TypeVar("Value")


def patiently(act: Callable[[], Value], give_up_s: float, stop: Event) -> Value:
    """Do ``act`` until the peer answers, with growing, jittered pauses.

    Raises:
        Unreachable, Overloaded: the last answer, ``give_up_s`` after the first attempt or once
            ``stop`` is set.
    """
    retrying = Retrying(
        retry=retry_if_exception_type((Unreachable, Overloaded)),
        wait=wait_random_exponential(multiplier=BACKOFF_S_MIN, max=BACKOFF_S_MAX),
        stop=stop_after_delay(give_up_s) | stop_when_event_set(stop),
        sleep=sleep_using_event(stop),
        reraise=True,
    )
    return retrying(act)


class RoundPatience:
    """How long to wait for a round that does not close: 2 round_deadline_s + give_up_s.

    The time in which the run is paused does not count.
    """

    def __init__(self, timeouts: TimeoutSettings, is_paused: Callable[[], bool]) -> None:
        self.limit_s = 2 * timeouts.round_deadline_s + timeouts.give_up_s
        self._left_s = self.limit_s
        self._is_paused = is_paused
        self._seen = time.monotonic()

    def start_again(self) -> None:
        """Something has moved: the whole time is there once more."""
        self._left_s = self.limit_s

    def check(self, what: str) -> None:
        """Count the time since the last check.

        Raises:
            Unreachable: too much of it has passed.
        """
        now = time.monotonic()
        if not self._is_paused():
            self._left_s -= now - self._seen
        self._seen = now
        if self._left_s < 0:
            raise Unreachable(
                f"The round of {what} has not closed for {self.limit_s:g} s; see whether enough "
                "replicas take part (min_replicas), then start this one again."
            )
