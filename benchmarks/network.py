"""Networks to measure on: this machine's loopback, or hosts of their own behind slow links.

The hosts are network namespaces around one that routes between them. Each host's link is as fast
in both directions as the profile says (``tc tbf``), and as slow to arrive: where there is a delay,
the link is a pair of TUN devices with a relay between them (``delay.py``), since not every kernel
has netem. Making them needs root; leaving the context removes all of it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

RELAY = Path(__file__).with_name("delay.py")
WIRE = "wire"
"""The device of a host that leads to the others."""
BURST_S, BURST_BYTES_MIN = 2e-3, 64 << 10
"""tbf lets so much pass at once; less than one large segment of TCP would never pass."""
QUEUE_S = 0.05
"""What waits for a link longer than this is dropped, as a router would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of link between a host and all the others."""

    mbit: int
    round_trip_s: float = 0.0
    """Added by the links between any two hosts."""


PROFILES = {
    "1gbit": Profile(mbit=1000),
    "100mbit": Profile(mbit=100, round_trip_s=0.030),
}
NETWORKS = ("loopback", *PROFILES)


class NetworkUnavailable(Exception):
    """The network could not be made; one sentence that says what to do."""


class Loopback:
    """Every host is this machine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was made."""

    def address(self, host: int) -> str:
        """The address of a host."""
        return "127.0.0.1"

    def on(self, host: int) -> list[str]:
        """What to put before a command, so that it runs on a host."""
        return []

    def interface(self, host: int) -> str:
        """The device by which a host reaches the others."""
        return "lo"


_numbers = itertools.count()
"""Of the networks of this process, which may have several at a time."""


class Links:
    """Hosts with a link each, as a context manager that leaves nothing of them behind."""

    def __init__(self, profile: Profile, hosts: int) -> None:
        self._profile, self._hosts = profile, hosts
        self._mark = f"syncline-{os.getpid()}-{next(_numbers)}"
        self._made = ExitStack()

    def __enter__(self) -> Self:
        """Make them.

        Raises:
            NetworkUnavailable: without root, or where the tools or the kernel refuse.
        """
        if os.geteuid() != 0:
            raise NetworkUnavailable("Network namespaces need root; run it with sudo.")
        with self._made as until_whole:
            self._namespace(self.hub)
            _run("ip", "netns", "exec", self.hub, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            for host in range(self._hosts):
                self._namespace(self.name(host))
                self._link(host)
            self._made = until_whole.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._made.close()

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"10.99.{host}.2"

    def on(self, host: int) -> list[str]:
        """What to put before a command, so that it runs on a host."""
        return ["ip", "netns", "exec", self.name(host)]

    def interface(self, host: int) -> str:
        """The device by which a host reaches the others."""
        return WIRE

    @property
    def hub(self) -> str:
        """The namespace through which all of them reach one another."""
        return f"{self._mark}-hub"

    def name(self, host: int) -> str:
        """The namespace of a host."""
        return f"{self._mark}-{host}"

    def _namespace(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._made.callback(_run, "ip", "netns", "del", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _link(self, host: int) -> None:
        name, far = self.name(host), f"host{host}"
        if self._profile.round_trip_s:
            self._relay(name, far)
        else:
            pair = ("type", "veth", "peer", "name", far, "netns", self.hub)
            _run("ip", "-n", name, "link", "add", WIRE, *pair)
        ends = ((name, WIRE, f"10.99.{host}.2/30"), (self.hub, far, f"10.99.{host}.1/30"))
        for namespace, device, address in ends:
            _run("ip", "-n", namespace, "addr", "add", address, "dev", device)
            _run("ip", "-n", namespace, "link", "set", device, "up")
            _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *self._shape())
        _run("ip", "-n", name, "route", "add", "default", "via", f"10.99.{host}.1")

    def _shape(self) -> list[str]:
        bytes_each_s = self._profile.mbit * 1e6 / 8
        burst = max(BURST_BYTES_MIN, int(BURST_S * bytes_each_s))
        limit = burst + int((QUEUE_S + self._profile.round_trip_s) * bytes_each_s)
        return [
            "tbf",
            "rate",
            f"{self._profile.mbit}mbit",
            "burst",
            str(burst),
            "limit",
            str(limit),
        ]

    def _relay(self, name: str, far: str) -> None:
        """Two TUN devices, and the process between them; each direction has a quarter of it."""
        delay = str(self._profile.round_trip_s / 4)
        process = subprocess.Popen(
            [sys.executable, str(RELAY), name, WIRE, self.hub, far, delay],
            stdout=subprocess.PIPE,
        )
        self._made.callback(_end, process)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise NetworkUnavailable("No TUN device could be made; see that /dev/net/tun is there.")


def network(name: str, hosts: int) -> Loopback | Links:
    """The network of that name (one of ``NETWORKS``), with so many hosts."""
    return Loopback() if name == "loopback" else Links(PROFILES[name], hosts)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NetworkUnavailable(f"{command[0]} is missing; install iproute2.") from None
    if done.returncode:
        why = done.stderr.strip().splitlines()
        raise NetworkUnavailable(f"`{' '.join(command)}` failed: {why[-1] if why else 'no word'}.")


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:  # waits for it, and closes its pipe
        process.terminate()
