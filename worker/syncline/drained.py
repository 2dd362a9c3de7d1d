"""SIGTERM as a wish to leave, in a loop whose owner has said nothing of signals.

Whoever has a handler of their own keeps it. Knows no library.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Protocol

from syncline.recall import SIGNAL


class Drains(Protocol):
    """A replica, as far as is needed here."""

    def request_drain(self, asker: str, /) -> None: ...


def is_free() -> bool:
    """Whether SIGTERM still means what it means to any process: its end on the spot."""
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def drained_on_sigterm(replica: Drains) -> Callable[[], None]:
    """Let SIGTERM drain the replica, once: a second one means what it did before.

    Does nothing outside of the main thread, where nobody may. Returns what puts back the handler
    of before, unless somebody has set another meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    before = signal.getsignal(signal.SIGTERM)

    def end() -> None:
        is_ours = signal.getsignal(signal.SIGTERM) is heed
        if is_ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)

    def heed(*_: object) -> None:
        replica.request_drain(SIGNAL)
        end()

    signal.signal(signal.SIGTERM, heed)  # last: one may come at once
    return end
