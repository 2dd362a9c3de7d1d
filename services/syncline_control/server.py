"""Serving: the socket, the server, its connections, and an end that comes soon.

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
from dataclasses import dataclass

import h11
import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from syncline_control.app import create_app
from syncline_control.descriptors import BACKLOG_MAX, Share, Shortage
from syncline_control.parser import Parser
from syncline_control.settings import ControlSettings
from syncline_control.state import State
from syncline_proto.descriptors import raise_limit
from syncline_proto.errors import ConfigError, PortInUse, SynclineError

SHUTDOWN_S = 2
"""Answers under way get this long after the waits were ended."""

KEEP_ALIVE_S = 75
"""An idle connection is kept longer than the longest time between two heartbeats (wan: 15 s)."""

HEAD_S = 10.0
"""A request's head must be whole so soon after the connection, or its first byte."""

HEAD_BYTES_MAX = 16 << 10

TAKEN_S, TAKEN_BYTES = 30.0, 16 << 10
"""Of what lies here of an answer its reader takes so many bytes, or all, in so many seconds."""

FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

log = structlog.get_logger()


class Connection(H11Protocol):
    """uvicorn's connection, but one that sends no whole request is closed after ``HEAD_S``.

    The same holds for what is left of a body whose request was refused; closed before it came, the
    answer would be lost. Whoever takes nothing of an answer is cut. Of more connections than there
    may be the new one is sent away; uvicorn would refuse whoever asks, those who are here included,
    and keep them all.
    """

    _deadline: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self.conn = Parser(HEAD_BYTES_MAX)
        transport.set_write_buffer_limits(0)  # so that we hear of all that is not taken at once
        most, self.limit_concurrency = self.limit_concurrency, None
        if most is not None and len(self.connections) > most:
            transport.write(FULL)
            transport.close()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._rest()
        self._has_taken()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._has_taken()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, and close; whoever works on an answer hears that nobody waits."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # an answer has begun or was given, and there is no other to a request
            self.transport.close()
        if bool(self.cycle) and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _watch(self) -> None:
        if bool(self.cycle) and not self.cycle.response_complete:
            self._rest()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self.transport.close)

    def _look(self, left: int) -> None:
        self._taking = self.loop.call_later(TAKEN_S, self._look_again, left)

    def _look_again(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if before - left < TAKEN_BYTES:
            self.transport.abort()  # to close it would wait for the reader
        else:
            self._look(left)

    def _has_taken(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


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
        return socket.create_server((host, port), family=family, backlog=BACKLOG_MAX)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"Another process listens on {host} port {port}; end it, or choose another with "
                "--port or SYNCLINE_CONTROL_PORT."
            ) from None
        raise ConfigError(f"Cannot listen on {host} port {port} ({error.strerror}).") from None


@dataclass(slots=True)
class End:
    """Why the server stops: a signal, or a fault of ours."""

    number: signal.Signals | None = None
    fault: str | None = None


async def serve(settings: ControlSettings) -> signal.Signals:
    """Serve until a signal comes, and return which one.

    Raises:
        PortInUse, ConfigError, StoreError: what the settings name cannot be had.
        SynclineError: the server could not start, or leases are looked after no more.
    """
    end = End()
    share = Share.of(raise_limit())
    asyncio.get_running_loop().set_exception_handler(Shortage())
    with listen(settings.host, settings.port) as sock:
        async with await State.open(settings.database) as state:

            def stop(number: signal.Signals | None = None, fault: str | None = None) -> None:
                end.number, end.fault = end.number or number, end.fault or fault
                state.end_waits()
                server.should_exit = True

            def abandoned() -> None:
                stop(fault="Leases are looked after no more")

            token = settings.token.get_secret_value() if settings.token else None
            only_here = token is None and not settings.insecure
            app = create_app(state, token=token, only_here=only_here, on_fault=abandoned)
            server = Server(_config(app, share))
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop, number)
            host, port = sock.getsockname()[:2]
            name = f"[{host}]" if ":" in host else host
            log.info("control_plane.listens", url=f"http://{name}:{port}", port=port)
            try:
                await server.serve(sockets=[sock])
            except SystemExit:  # uvicorn's word for a start that failed
                stop(fault="The server could not start")
            log.info("control_plane.ended")
    if end.fault or end.number is None:
        why = end.fault or "The server could not start"
        raise SynclineError(f"{why}; the log says why, please report it.")
    return end.number


def _config(app: FastAPI, share: Share) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        limit_concurrency=share.connections,
        backlog=share.backlog,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        log_config=None,
        access_log=False,
    )
