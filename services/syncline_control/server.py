"""Serving: the socket, the server, and an end that comes soon.

Signals first answer every long poll and end every stream; what is under way then gets
``SHUTDOWN_S`` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Generator

import structlog
import uvicorn

from syncline_control.app import create_app
from syncline_control.settings import ControlSettings
from syncline_control.state import State
from syncline_proto.errors import ConfigError, PortInUse

SHUTDOWN_S = 2
"""Answers under way get this long after the waits were ended."""

log = structlog.get_logger()


class Server(uvicorn.Server):
    """uvicorn without its own signal handling, which ends waits too late and exits by signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        PortInUse: somebody else listens there.
        ConfigError: the host is not ours, or the port is not allowed.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"Another process listens on {host} port {port}; end it or choose another --port."
            ) from None
        raise ConfigError(f"Cannot listen on {host} port {port} ({error.strerror}).") from None


async def serve(settings: ControlSettings) -> signal.Signals:
    """Serve until a signal comes, and return which one."""
    with listen(settings.host, settings.port) as sock:
        async with await State.open(settings.database) as state:
            token = settings.token.get_secret_value() if settings.token else None
            app = create_app(state, token=token)
            config = uvicorn.Config(
                app, log_config=None, access_log=False, timeout_graceful_shutdown=SHUTDOWN_S
            )
            server = Server(config)
            caught: list[signal.Signals] = []

            def end(number: signal.Signals) -> None:
                caught.append(number)
                state.end_waits()
                server.should_exit = True

            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, end, number)
            host, port = sock.getsockname()[:2]
            name = f"[{host}]" if ":" in host else host
            log.info("control_plane.listens", url=f"http://{name}:{port}", port=port)
            await server.serve(sockets=[sock])
            log.info("control_plane.ended")
            return caught[0] if caught else signal.SIGTERM
