"""Ports on this machine: free ones, and whether a wanted one is free."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from syncline_proto.errors import ConfigError, PortInUse

LOOPBACK = "127.0.0.1"
OURS = range(20_000, 32_768)
HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Where Linux tells of which ports outgoing connections get theirs: the first and the last."""


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now; all different.

    They are not of those that the system hands out, to every outgoing connection too: such a one
    could be gone before the service listens, or while it is started again. Only where no others
    are free are they.

    Raises:
        PortInUse: there are not so many.
    """
    free: list[int] = []
    handed_out = _handed_out()
    for port in sorted(random.sample(OURS, len(OURS)), key=handed_out.__contains__):
        with suppress(OSError), ExitStack() as held:
            free.append(_bound(held, LOOPBACK, port))
        if len(free) == count:
            return free
    raise PortInUse(
        f"Only {len(free)} ports from {OURS.start} to {OURS.stop - 1} are free, and {count} are "
        "needed; stop what listens there."
    )


def require_free(port: int, flag: str, host: str = LOOPBACK) -> int:
    """Return ``port`` if it is free.

    Raises:
        PortInUse: another process listens on it; ``flag`` names the setting to change.
        ConfigError: it cannot be used at all.
    """
    with ExitStack() as held:
        try:
            return _bound(held, host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    f"Port {port} is taken by another process; stop that one, or choose another "
                    f"port with {flag} (0 takes any free one)."
                ) from None
            reason = error.strerror or error
            raise ConfigError(f"Port {port} cannot be used ({reason}); change {flag}.") from None


def _handed_out() -> range:
    """The ports that the system hands out; none, where it does not tell."""
    try:
        first, last = map(int, HANDED_OUT.read_text().split())
    except (OSError, ValueError):
        return range(0)
    return range(first, last + 1)


def _bound(held: ExitStack, host: str, port: int) -> int:
    listener = held.enter_context(socket.socket())
    # As the services do: a port in TIME_WAIT is free, one with a listener is not.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener.getsockname()[1]
