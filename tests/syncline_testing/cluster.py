"""A control plane and sync services as real processes, for tests that need the whole system.

All listen on free ports of 127.0.0.1 and keep their data under one folder, so each can be
killed and started again where it was. ``Cluster`` is a context manager that leaves no process.
Benchmarks use it, too, so nothing here is loaded that they would not have.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import httpx

from syncline_sync.supervisor import PORTS_APART
from syncline_testing import at_rest
from syncline_testing.processes import environment
from syncline_testing.waiting import wait_until

START_S = 60.0
STOP_S = 10.0
# Below the ports that the system picks for outgoing connections and for who asks for any.
PORTS_FROM, PORTS_UNTIL, PORTS_EACH = 10_000, 20_000, 100


class Process(Protocol):
    """A child of ours, as ``subprocess`` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...

    def kill(self) -> None: ...


def executed(command: Sequence[str], log: Path) -> Process:
    """Start a program; what it says is added to ``log``."""
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment())


class Service:
    """One process of ours: its command, its log, and whether it answers."""

    begins: ClassVar[Callable[[Sequence[str], Path], Process]] = staticmethod(executed)
    """How one is started that is Python and nothing else; see ``warm.begun``."""

    def __init__(self, module: str, ready_url: str, args: list[str], log: Path) -> None:
        self.module = module
        self.log = log
        self._ready_url = ready_url
        self._command = [sys.executable, "-m", module, *args]
        self._begins = type(self).begins
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def limit(self, command: str) -> None:
        """Let a shell run ``command`` (``ulimit -n 256``) in the process before it begins."""
        self._command = ["sh", "-c", f'{command}; exec "$@"', "sh", *self._command]
        self._begins = executed

    def rests(self) -> None:
        """Let it give back what is free of its memory whenever it gets ``at_rest.GIVE_BACK``."""
        self._command[1:2] = ["-P", at_rest.__file__]
        self._begins = executed

    def extend(self, *args: str) -> None:
        """Start the process with these, too, from now on."""
        self._command += args

    def start(self) -> None:
        """Start the process, and wait until it says that it is ready."""
        self._process = self._begins(self._command, self.log)
        wait_until(self._is_ready, START_S, f"{self.module} is ready; {self.log} says why not")

    def last_words(self) -> str:
        """Whether the process lives, and the end of its log: for the message of a failure."""
        code = self._process.poll() if self._process else None
        state = f"ended with {code}" if code is not None else "runs" if self._process else "is not"
        return f"{self.module} {state}:\n{self.log.read_text(errors='replace')[-2000:]}"

    def kill(self) -> None:
        """End the process as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process as an operator would."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(self.last_words())
        try:
            return httpx.get(self._ready_url, timeout=1.0, trust_env=False).is_success
        except httpx.TransportError:
            return False


class Cluster:
    """``with Cluster(tmp_path) as cluster``: all services are ready, and stopped at the end.

    With ``shards`` over 1 ``syncs`` share the fragments; ``sync`` is the first of them.
    """

    def __init__(self, folder: Path, *sync_options: str, shards: int = 1) -> None:
        self.folder = folder
        control, *ports = free_ports(1 + 3 * shards)
        self.control_url = f"http://127.0.0.1:{control}"
        self.sync_metrics_url = f"http://127.0.0.1:{ports[2]}/metrics"
        self.control = Service(
            "syncline_control",
            f"{self.control_url}/readyz",
            ["--host", "127.0.0.1", "--port", str(control), "--database", str(folder / "control")],
            folder / "control.log",
        )
        self.syncs: list[Service] = []
        self.stores = [folder / (f"store-{i}" if i else "store") for i in range(shards)]
        self.sync_addresses = [f"127.0.0.1:{port}" for port in ports[::3]]
        for index in range(shards):
            sync, health, metrics = ports[3 * index : 3 * index + 3]
            name, store = f"sync-{index}" if index else "sync", self.stores[index]
            options = [
                *("--control", self.control_url, "--host", "127.0.0.1", "--port", str(sync)),
                *("--health-port", str(health), "--metrics-port", str(metrics)),
                *("--data", str(store), *sync_options),
                *("--shards", str(shards), "--index", str(index)),
            ]
            ready = f"http://127.0.0.1:{metrics}/metrics"
            log = folder / f"{name}.log"
            self.syncs.append(Service("syncline_sync", ready, options, log))
        self.sync, self.sync_address = self.syncs[0], self.sync_addresses[0]
        self.http = httpx.Client(base_url=f"{self.control_url}/v1", timeout=10.0, trust_env=False)

    def __enter__(self) -> Self:
        try:
            self.control.start()
            for sync in self.syncs:
                sync.start()
            wait_until(self._knows_sync, START_S, "the sync service has announced itself")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.http.close()
        for sync in self.syncs:
            sync.stop()
        self.control.stop()

    def get(self, path: str) -> Any:
        """GET a REST path below /v1."""
        return self.http.get(path).raise_for_status().json()

    def post(self, path: str, body: Any = None) -> Any:
        """POST to a REST path below /v1."""
        return self.http.post(path, json=body).raise_for_status().json()

    def steps(self, run: str) -> list[list[int]]:
        """The inner steps of each push that is in a round, of each such round that is told."""
        rounds = self.get(f"/runs/{run}/rounds?limit=1000")
        return [[c["inner_steps"] for c in one["contributions"]] for one in rounds]

    def _knows_sync(self) -> bool:
        alive = sum(one["alive"] for one in self.get("/sync-services"))
        return alive == len(self.sync_addresses)


class Supervised(Cluster):
    """As ``Cluster``, but one command keeps all sync services (``--shards``): that is ``sync``."""

    def __init__(self, folder: Path, shards: int) -> None:
        super().__init__(folder, shards=shards)
        first = _ports_apart(shards)
        self.sync_addresses = [f"127.0.0.1:{first + PORTS_APART * i}" for i in range(shards)]
        self.stores = [folder / "store" / f"sync-{i}" for i in range(shards)]
        self.sync_metrics_url = f"http://127.0.0.1:{first + 2}/metrics"
        options = [
            *("--control", self.control_url, "--host", "127.0.0.1", "--port", str(first)),
            *("--health-port", str(first + 1), "--metrics-port", str(first + 2)),
            *("--data", str(folder / "store"), "--shards", str(shards)),
        ]
        self.sync = Service("syncline_sync", self.sync_metrics_url, options, folder / "sync.log")
        self.syncs, self.sync_address = [self.sync], self.sync_addresses[0]


def _ports_apart(shards: int) -> int:
    """The first of three free ports, above which each service has three more."""
    free = set(free_ports(3 * PORTS_APART))
    for first in sorted(free):
        if all(first + PORTS_APART * i + j in free for i in range(shards) for j in range(3)):
            return first
    raise AssertionError("no free ports are so far apart")


@cache
def _own_ports() -> tuple[socket.socket, Iterator[int]]:
    """Ports that are this process's alone, again and again: who listens on the first owns them."""
    for first in range(PORTS_FROM, PORTS_UNTIL, PORTS_EACH):
        with contextlib.suppress(OSError):
            owned = socket.create_server(("127.0.0.1", first))
            return owned, itertools.cycle(range(first + 1, first + PORTS_EACH))
    raise AssertionError("so many processes test at a time that no ports are left")


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens; tests that run beside these, of any suite, get others."""
    free: list[int] = []
    for port in itertools.islice(_own_ports()[1], PORTS_EACH):
        with contextlib.suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            free.append(port)
        if len(free) == count:
            return free
    raise AssertionError(f"only {len(free)} ports are free, not {count}")
