"""The referee of ``round.py``: lets one system at a time do one round, and takes down its times.

A participant says that it is ready once its inner steps are done; when all of its system are, the
referee lets them begin at once. A round lasts from the first one's beginning until the last one's
model holds the result. Whoever is not in turn waits at its gate (``peers/gate.py``).
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

LOOK_S = 0.2


class RoundFailed(Exception):
    """A system did no round: why, as one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round of one system took, and how far off its result was."""

    seconds: float
    off: float
    """Distance from the exact result over the distance that the model should have moved."""


@dataclass(slots=True, kw_only=True)
class _Participant:
    connection: socket.socket | None = None
    began: float | None = None
    ended: float | None = None
    """None once everybody's round has ended, too, or where it looks at the result by itself."""
    ready: dict[str, Any] | None = None
    """What it said when it became ready last; None while its round is under way."""


@dataclass(slots=True, kw_only=True)
class _System:
    participants: dict[int, _Participant] = field(default_factory=dict[int, _Participant])


class Referee:
    """Listens on a Unix socket; a context manager, at whose end all participants end too."""

    def __init__(self, path: Path, participants: int, limit_s: float) -> None:
        """``limit_s``: how long a round, or a system's start, may take."""
        self._participants, self._limit_s = participants, limit_s
        self._systems: dict[str, _System] = {}
        self._said: queue.SimpleQueue[tuple[str, int, socket.socket, dict[str, Any]]] = (
            queue.SimpleQueue()
        )
        self._connections: list[socket.socket] = []
        self._readers: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._door = threading.Thread(target=self._accept, daemon=True)
        self._door.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._listener)
        self._door.join()
        for connection in self._connections:
            _shut(connection)
        for reader in self._readers:
            reader.join()
        for each in (self._listener, *self._connections):
            each.close()

    def round(self, system: str, see_alive: Callable[[], None]) -> Round:
        """Let a system do one round.

        ``see_alive`` raises RoundFailed where one of its processes has ended.

        Raises:
            RoundFailed: a process has ended, or the limit is over.
        """
        self.wait(system, see_alive)
        see_alive()
        people = self._systems[system].participants.values()
        for one in people:
            one.began = one.ready = None
            _let_go_on(one)
        self.wait(system, see_alive)
        began = [one.began for one in people if one.began is not None]
        told = [one.ready for one in people if one.ready is not None]
        seconds = max(each["ended"] for each in told) - min(began)
        return Round(seconds=seconds, off=max(each["off"] for each in told))

    def wait(self, system: str, see_alive: Callable[[], None]) -> None:
        """Wait until all participants of a system are ready.

        Raises:
            RoundFailed: as ``round`` does.
        """
        end = time.monotonic() + self._limit_s
        while not self._are_ready(system):
            see_alive()
            if time.monotonic() > end:
                raise RoundFailed(
                    f"{system} was not ready within {self._limit_s:g} s; its log may tell why."
                )
            try:
                self._hear(*self._said.get(timeout=LOOK_S))
            except queue.Empty:
                continue

    def _are_ready(self, system: str) -> bool:
        people = self._systems.setdefault(system, _System()).participants
        ready = [one for one in people.values() if one.ready is not None]
        return len(ready) == self._participants

    def _hear(
        self, system: str, number: int, connection: socket.socket, what: dict[str, Any]
    ) -> None:
        people = self._systems.setdefault(system, _System()).participants
        one = people.setdefault(number, _Participant())
        one.connection = connection
        if "began" in what:
            one.began = what["began"]
        elif what.get("ready"):
            one.ready = what
        else:
            one.ended = what["ended"]
            self._see_ended(list(people.values()))

    def _see_ended(self, people: list[_Participant]) -> None:
        """Let them look at the result, once all have it."""
        if len(people) < self._participants or any(one.ended is None for one in people):
            return
        for one in people:
            one.ended = None
            _let_go_on(one)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # shut
            self._connections.append(connection)
            reader = threading.Thread(target=self._read, args=(connection,), daemon=True)
            self._readers.append(reader)
            reader.start()

    def _read(self, connection: socket.socket) -> None:
        with suppress(OSError), connection.makefile("r") as lines:
            hello = json.loads(next(lines, "null"))
            for line in lines if hello else ():
                said = json.loads(line)
                self._said.put((hello["system"], hello["participant"], connection, said))


def _shut(each: socket.socket) -> None:
    """End what it is waited for; closing it alone would wake nobody."""
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


def _let_go_on(one: _Participant) -> None:
    """Let one that waits at the gate go on.

    Raises:
        RoundFailed: it is gone.
    """
    assert one.connection is not None
    try:
        one.connection.sendall(b"\n")
    except OSError as error:
        raise RoundFailed(f"A participant has gone ({error.strerror}).") from error
