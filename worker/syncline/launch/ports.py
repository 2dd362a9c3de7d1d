"""Ports on this machine: free ones, and whether a wanted one is free."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack, suppress

from syncline_proto.errors import ConfigError, PortInUse

LOOPBACK = "127.0.0.1"
OURS = range(20_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now; all different.

    They are not of those that systems hand out, to every outgoing connection too: such a one could
    be gone before the service listens, or while it is started again.

    Raises:
        PortInUse: there are not so many.
    """
    free: list[int] = []
    for port in random.sample(OURS, len(OURS)):
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


def _bound(held: ExitStack, host: str, port: int) -> int:
    listener = held.enter_context(socket.socket())
    # As the services do: a port in TIME_WAIT is free, one with a listener is not.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener.getsockname()[1]
