"""Calling a replica off: an event that a signal may set, and waits that end with it.

A wait for somebody who does not answer ends within a moment; what it asked is left behind.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Event
from typing import TypeVar

from syncline.background import in_background
from syncline_proto.errors import CalledOff, Overloaded, Unreachable

CALLED_OFF = "The replica was asked to leave before it had joined; nothing was trained."

OWN = "its own process"
"""Who asked, where nobody else is named."""

SIGNAL = "a signal (SIGTERM)"
"""Who asked, where a signal did."""

LOOK_S = 0.1
"""Between two looks at whether a replica is recalled."""

LAST_CALL_S = 0.5
"""How long who is recalled waits for the answer to a call that is on its way."""

Value = TypeVar("Value")


class Recall(Event):
    """An event that a signal handler may set: it takes no lock, and who waits for it looks often.

    A plain Event's lock may be held by the very thread that the signal interrupts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked = False
        self.asker = OWN
        """Who set it, in words."""

    def set(self, asker: str = OWN) -> None:
        self.asker = asker
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
