"""How long a worker waits for others, and what it says of that: one retry policy, one limit for
rounds, one recall, one word about a service that is away.

Every wait here has a bound and can be ended at once by an event.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Event, Lock
from typing import TypeVar

import structlog
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    wait_random_exponential,
)

from syncline.background import in_background
from syncline_proto.errors import CalledOff, Overloaded, Unreachable
from syncline_proto.settings import TimeoutSettings

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 1.0
"""Of the pauses between two attempts: a service that comes back is found within a second or so."""

SAY_AFTER_S = 3.0
"""A service that is away for less is not worth a word: it may be starting again."""

CALLED_OFF = "The replica was asked to leave before it had joined; nothing was trained."

LOOK_S = 0.1
"""Between two looks at whether a replica is recalled."""

LAST_CALL_S = 0.5
"""How long who is recalled waits for the answer to a call that is on its way."""

Value = TypeVar("Value")

log = structlog.get_logger()


class Recall(Event):
    """An event that a signal handler may set: it takes no lock, and who waits for it looks often.

    A plain Event's lock may be held by the very thread that the signal interrupts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked = False

    def set(self) -> None:
        self._asked = True

    def is_set(self) -> bool:
        return self._asked

    def wait(self, timeout: float | None = None) -> bool:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left))
        return self._asked


def unless_recalled(act: Callable[[], Value], recall: Event) -> Value:
    """Do ``act`` in the background, and leave it there once ``recall`` is set.

    What ``act`` keeps asking must heed ``recall``. A call that is on its way cannot be interrupted,
    and gets ``LAST_CALL_S``: most answers come within it, and a lease among them is given back.

    Raises:
        CalledOff: ``recall`` was set before there was a result.
    """
    future: Future[Value] = in_background(act, "syncline-asking").future
    while not wait([future], LOOK_S).done:
        if recall.is_set() and not wait([future], LAST_CALL_S).done:
            raise CalledOff(CALLED_OFF)
    if recall.is_set() and isinstance(future.exception(), Unreachable | Overloaded):
        raise CalledOff(CALLED_OFF)
    return future.result()


class Outage:
    """Says that a service is away, and that it is back: each once, however many wait for it.

    All methods may be called from any thread.
    """

    def __init__(self, who: str, so: str) -> None:
        """``who`` is what its events begin with, ``so`` what follows from its absence."""
        self._who, self._so = who, so
        self._lock = Lock()
        self._since: float | None = None
        self._said = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Inside, one call is made; what it raises goes on its way."""
        try:
            yield
        except Unreachable as error:
            self._missed(error)
            raise
        self._answered()

    def _missed(self, error: Unreachable) -> None:
        with self._lock:
            now = time.monotonic()
            self._since = now if self._since is None else self._since
            due = not self._said and now - self._since >= SAY_AFTER_S
            self._said = self._said or due
        if due:
            log.warning(f"{self._who}.away", why=error.message, so=self._so)

    def _answered(self) -> None:
        with self._lock:
            was_said, self._since, self._said = self._said, None, False
        if was_said:
            log.info(f"{self._who}.back")


def patiently(
    act: Callable[[], Value],
    give_up_s: float,
    stop: Event,
    excused_s: Callable[[], float] = lambda: 0.0,
    outage: Outage | None = None,
) -> Value:
    """Do ``act`` until the peer answers, with growing, jittered pauses.

    ``excused_s`` is how much of the time so far was not the peer's to answer in; ``outage`` tells
    of a peer that is away (None: nobody needs to be told).

    Raises:
        Unreachable, Overloaded: the last answer, ``give_up_s`` after the first attempt or once
            ``stop`` is set.
    """

    def is_enough(state: RetryCallState) -> bool:
        asked_s = (state.seconds_since_start or 0.0) - excused_s()
        return stop.is_set() or asked_s >= give_up_s

    def attempt() -> Value:
        if outage is None or stop.is_set():
            return act()
        with outage.noted():
            return act()

    retrying = Retrying(
        retry=retry_if_exception_type((Unreachable, Overloaded)),
        wait=wait_random_exponential(multiplier=BACKOFF_S_MIN, max=BACKOFF_S_MAX),
        stop=is_enough,
        sleep=sleep_using_event(stop),
        reraise=True,
    )
    return retrying(attempt)


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
