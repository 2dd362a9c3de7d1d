"""A run's hosts in network namespaces, and cuts between any two of them, in either direction.

What is sent across a cut is dropped without a word, as by a router that has lost its way: both ends
still hold their connections. It knows nothing of replicas and rounds. The host between all others
(the hub) is never cut off; a test asks its questions from there.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from network import Links, Profile
from syncline_testing.cluster import START_S, Service, executed
from syncline_testing.waiting import wait_until

CONTROL, SYNC, REPLICAS = 0, 1, 2
"""The hosts; each replica has one of its own, from the third on."""

CONTROL_PORT, SYNC_PORT, HEALTH_PORT, METRICS_PORT = 8500, 50051, 50052, 9101
CLONE_NEWNET = 0x40000000

Way = tuple[int, int]
"""From which host to which packets go."""


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Within it this thread's new sockets, threads and processes are in the network namespace.

    A socket stays where it was made, so what is kept open goes on being of that namespace.
    """
    with open("/proc/thread-self/ns/net") as ours, (Path("/run/netns") / namespace).open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(ours.fileno())


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Hosted(Service):
    """It is where the thread is that starts it."""

    begins = staticmethod(executed)


class Apart:
    """A control plane and a sync service on hosts of their own, and hosts for replicas.

    Raises (on entering it):
        NetworkUnavailable: no such hosts can be made here.
    """

    def __init__(self, folder: Path, replicas: int, mbit: int = 1000) -> None:
        self.store = folder / "store"
        self.links = Links(Profile(mbit=mbit), REPLICAS + replicas)
        self.control_url = f"http://{self.links.address(CONTROL)}:{CONTROL_PORT}"
        sync = self.links.address(SYNC)
        control_options = ["--host", "0.0.0.0", "--port", str(CONTROL_PORT), "--insecure"]
        self.control = Hosted(
            "syncline_control",
            f"{self.control_url}/readyz",
            [*control_options, "--database", str(folder / "control.db")],
            folder / "control.log",
        )
        sync_options = [
            *("--control", self.control_url, "--data", str(self.store), "--insecure"),
            *("--host", "0.0.0.0", "--port", str(SYNC_PORT), "--advertise", f"{sync}:{SYNC_PORT}"),
            *("--health-port", str(HEALTH_PORT), "--metrics-port", str(METRICS_PORT)),
        ]
        self.sync = Hosted(
            "syncline_sync",
            f"http://{sync}:{METRICS_PORT}/metrics",
            sync_options,
            folder / "sync.log",
        )
        self._made = ExitStack()

    def __enter__(self) -> Self:
        with self._made as until_whole:
            until_whole.enter_context(self.links)
            for host, service in ((CONTROL, self.control), (SYNC, self.sync)):
                until_whole.callback(service.stop)
                with inside(self.links.name(host)):
                    service.start()
            wait_until(lambda: self.get("/sync-services") != [], START_S, "the service is known")
            self._made = until_whole.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._made.close()

    def get(self, path: str) -> Any:
        """GET a REST path below /v1, from the hub."""
        return self._ask("GET", path)

    def post(self, path: str) -> Any:
        """POST to a REST path below /v1, from the hub."""
        return self._ask("POST", path)

    @contextmanager
    def cut(self, *ways: Way) -> Iterator[None]:
        """Within it nothing comes from the first host of each way to the second."""
        with ExitStack() as mended:
            for way in ways:
                mended.callback(self._rule, "del", way)
                self._rule("add", way)
            yield

    def _rule(self, verb: str, way: Way) -> None:
        start, end = (self.links.address(host) for host in way)
        command = ["ip", "-n", self.links.hub, "rule", verb, "from", start, "to", end, "blackhole"]
        subprocess.run(command, check=True)

    def _ask(self, method: str, path: str) -> Any:
        url = f"{self.control_url}/v1{path}"
        with inside(self.links.hub):
            answer = httpx.request(method, url, timeout=10.0, trust_env=False)
        return answer.raise_for_status().json()
