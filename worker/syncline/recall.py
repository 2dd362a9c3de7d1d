"""Calling a replica off: an event that a signal may set, and waits that end with it.

A wait for somebody who does not answer ends within a moment, on all ranks, whichever of them was
asked to leave; what it asked is left behind.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from threading import Event
from typing import Any

from syncline.background import in_background
from syncline.ranks import Ranks
from syncline_proto.errors import CalledOff, Overloaded, Unreachable

CALLED_OFF = "The replica was asked to leave before it had joined; nothing was trained."

OWN = "its own process"
"""Who asked, where nobody else is named."""

SIGNAL = "a signal (SIGTERM)"
"""Who asked, where a signal did."""

OPERATOR = "an operator"
"""Who asked, where the control plane has told so."""

OTHER = "another of its ranks"
"""Who asked, where that was not this process."""

LOOK_S = 0.1
"""Between two looks at whether a replica is recalled."""

LAST_CALL_S = 0.5
"""How long who is recalled waits for the answer to a call that is on its way."""


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

    def forget(self) -> None:
        """Whoever was asked has left: a life that begins now was not."""
        self._asked, self.asker = False, OWN

    def is_set(self) -> bool:
        return self._asked

    def hear(self, asked: Iterable[bool]) -> bool:
        """Learn which ranks were asked to leave: with one of them all are. Whether one was."""
        is_asked = any(asked)
        if is_asked and not self._asked:
            self.set(OTHER)
        return is_asked

    def wait(self, timeout: float | None = None) -> bool:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left))
        return self._asked


def unless_recalled(
    act: Callable[[], Any],
    recall: Recall,
    ranks: Ranks,
    listen: Callable[[], object] = lambda: None,
) -> Any:
    """Let rank 0 do ``act`` in the background, and leave it there once a rank is recalled.

    Returns on all ranks what it made, which JSON can carry. Meanwhile they meet at each look, so
    that none waits for longer, and whichever is recalled is heard. What ``act`` keeps asking must
    heed ``recall``; ``listen`` is called before each look, and may set that. A call that is on its
    way cannot be interrupted, and gets ``LAST_CALL_S``: most answers come within it, and a lease
    among them is given back.

    Raises:
        CalledOff: ``recall`` was set, on any rank, before there was a result.
        SynclineError: as ``Ranks.share``.
    """
    asked = in_background(act, "syncline-asking").future if ranks.first else None
    listen()
    while not _is_over(asked, recall, ranks):
        listen()

    def answer() -> Any:
        assert asked is not None
        if recall.is_set():
            if not wait([asked], LAST_CALL_S).done:
                raise CalledOff(CALLED_OFF)
            if isinstance(asked.exception(), Unreachable | Overloaded):
                raise CalledOff(CALLED_OFF)
        return asked.result()

    return ranks.share(answer)


def _is_over(asked: Future[Any] | None, recall: Recall, ranks: Ranks) -> bool:
    """One look, on all ranks: whether rank 0 has what it ``asked`` for, or one is recalled."""
    has_come = asked is not None and bool(wait([asked], LOOK_S).done)
    told = ranks.gather([has_come, recall.is_set()])
    # By what all have heard: a signal may come in between, on one of them.
    return recall.hear(bool(one) for _, one in told) or bool(told[0][0])
