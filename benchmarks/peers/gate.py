"""A participant's side of the turns: it says that it is ready, waits for its turn, tells the times.

The referee (``benchmarks/turns.py``) listens on a Unix socket, which processes reach from any
network namespace, and each message is a line of JSON. Times are CLOCK_MONOTONIC's, which is one
for all processes of a machine.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable

from peers.values import Trainee

GATE, SYSTEM, PARTICIPANT = "ROUND_GATE", "ROUND_SYSTEM", "ROUND_PARTICIPANT"
PARTICIPANTS, PARAMETERS, PLACE = "ROUND_PARTICIPANTS", "ROUND_PARAMETERS", "ROUND_PLACE"
LOOK_S = 0.05


class Gate:
    """A connection to the referee. When that is gone, so is the process."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ[GATE])
        self._lines = self._socket.makefile("r")
        self.began = 0.0
        """When the last round began here."""
        self._say(system=os.environ[SYSTEM], participant=int(os.environ[PARTICIPANT]))

    def ready(self, ended: float | None = None, off: float | None = None) -> None:
        """Say what came of the last round, if there was one; return when the next begins."""
        self._say(ready=True, ended=ended, off=off)
        self._await()
        self.began = time.monotonic()
        self._say(began=self.began)

    def ended(self) -> float:
        """Say that the model holds the result; return when, once everybody's does.

        To look at it before would take the processors from those who are still at it.
        """
        ended = time.monotonic()
        self._say(ended=ended)
        self._await()
        return ended

    def close(self) -> None:
        """Leave the referee, before the process ends."""
        self._lines.close()
        self._socket.close()

    def _await(self) -> None:
        """Wait for the referee's word."""
        if not self._lines.readline():
            raise SystemExit(0)

    def _say(self, **what: object) -> None:
        self._socket.sendall(json.dumps(what).encode() + b"\n")


def me() -> tuple[int, int, int]:
    """This process's number among the participants, how many those are, and the model's size."""
    return (
        int(os.environ[PARTICIPANT]),
        int(os.environ[PARTICIPANTS]),
        int(os.environ[PARAMETERS]),
    )


def place() -> dict[str, str]:
    """Where this system's processes find one another, as ``benchmarks/systems.py`` has told."""
    return json.loads(os.environ[PLACE])


def take_turns(
    trainee: Trainee, exchange: Callable[[], None], prepare: Callable[[], None] = lambda: None
) -> None:
    """Train, wait for the turn, exchange, look at what came of it; until the referee is gone.

    ``prepare`` is what a system does ahead of a round, while training goes on: it is not timed.
    """
    gate = Gate()
    ended = off = None
    while True:
        trainee.train()
        prepare()
        gate.ready(ended, off)
        exchange()
        ended = gate.ended()
        off = trainee.off()


def wait_for(address: str, within_s: float = 60.0) -> None:
    """Wait until somebody listens there."""
    host, port = address.rsplit(":", 1)
    end = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection((host, int(port)), 1.0).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise SystemExit(f"Nobody listens on {address} after {within_s:g} s.") from None
            time.sleep(LOOK_S)
