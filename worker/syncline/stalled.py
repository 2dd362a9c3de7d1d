"""Calls that stand still, and the thread of a link that cuts them off.

A call moves with each chunk that is sent or taken. Knows nothing of what is in them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from syncline_proto.errors import bare
from syncline_proto.status import ROOM_HEADER

CLOSE_S = 5.0
"""How long the end of the thread that looks after calls is waited for."""


class Stalled(Exception):
    """The call made no progress for ``call_s``. A pull that waits for its revision does so."""


class Watched:
    """A call in flight, and when it last moved."""

    def __init__(self) -> None:
        self.call: Any = None
        self.moved_at = time.monotonic()
        self.cut = False
        self._begun = threading.Event()

    def begin(self, call: Any) -> None:
        self.call = call
        self._begun.set()

    def has_room(self) -> bool:
        """Wait for the service's word that it takes chunks; False if the call ended instead."""
        self._begun.wait()  # for as long as it takes to begin a call
        return any(key == ROOM_HEADER for key, _ in self.call.initial_metadata())

    def moved(self) -> None:
        self.moved_at = time.monotonic()


class Watch:
    """Cuts off calls that stand still; one thread looks after all calls of a link."""

    def __init__(self, limit_s: float) -> None:
        """``limit_s`` is how long a call may stand still."""
        self._limit_s = limit_s
        self._calls: set[Watched] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="syncline-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(CLOSE_S)

    @contextmanager
    def follow(self) -> Iterator[Watched]:
        """Look after the call that the caller puts into what this yields.

        One that its caller leaves before its end is cut off: the service keeps a turn for it.

        Raises:
            Stalled: the call was cut off.
        """
        watched = Watched()
        with self._lock:
            self._calls.add(watched)
        try:
            yield watched
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            if watched.cut:
                bare(error)  # it is the call, and its frames hold all that was sent
                raise Stalled from None
            raise
        finally:
            with self._lock:
                self._calls.discard(watched)
            if watched.call is not None:
                watched.call.cancel()  # nothing to one that has ended

    def _look(self) -> None:
        while not self._stop.wait(min(1.0, self._limit_s / 4)):
            limit = time.monotonic() - self._limit_s
            with self._lock:
                still = [call for call in self._calls if call.moved_at < limit]
            for watched in still:
                if watched.call is not None:
                    watched.cut = True
                    watched.call.cancel()
