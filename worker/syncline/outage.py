"""A word about a service that is away: said once when it lasts, and once when it is over.

Whoever answers is there, even if it refuses. Decides nothing about waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import structlog
from structlog.typing import FilteringBoundLogger

from syncline_proto.errors import SynclineError, Unreachable

SAY_AFTER_S = 3.0
"""A service that is away for less is not worth a word: it may be starting again."""

log: FilteringBoundLogger = structlog.get_logger()


class Outage:
    """Says that a service is away, and that it is back: each once, however many wait for it.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        who: str,
        so: str,
        at: Callable[[], str],
        log: FilteringBoundLogger = log,
        *,
        tells_why: bool = True,
    ) -> None:
        """``who`` is what its events begin with, ``so`` what follows from its absence, ``at`` where
        it listens (by now: it may come back elsewhere).

        ``tells_why``: with the error; else that is left to whoever soon gives up in its words.
        """
        self._who, self._so, self._at = who, so, at
        self._log, self._tells_why = log, tells_why
        self._lock = Lock()
        self._since: float | None = None
        self._said = False

    @property
    def is_on(self) -> bool:
        """Nobody has answered the last call, whether or not that was said."""
        return self._since is not None

    @property
    def is_told(self) -> bool:
        """It has lasted, and that was said."""
        return self._said

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Inside, one call is made; what it raises goes on its way."""
        try:
            yield
        except Unreachable as error:
            self.missed(error)
            raise
        except SynclineError:
            self.answered()
            raise
        self.answered()

    def missed(self, error: SynclineError) -> None:
        """Nobody answered a call."""
        with self._lock:
            now = time.monotonic()
            self._since = now if self._since is None else self._since
            due = not self._said and now - self._since >= SAY_AFTER_S
            self._said = self._said or due
        if due:
            why = {"why": error.message} if self._tells_why else {}
            self._log.warning(f"{self._who}.away", so=self._so, **why)

    def answered(self) -> None:
        """Somebody did, whatever the answer."""
        with self._lock:
            was_said, self._since, self._said = self._said, None, False
        if was_said:
            self._log.info(f"{self._who}.back", at=self._at())
