"""/metrics over HTTP: answers whoever asks, and closes on who does not come to an end.

Nobody needs a token here, so the threads and the connections are bounded. What is answered, the
caller's application knows (prometheus_client's); at other paths there is nothing, whatever it says.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import structlog

log = structlog.get_logger()

PATH = "/metrics"

REQUEST_S = 10.0
"""A request that has not been answered after so long is closed, whether it stands still or drips.
"""

REQUESTS_MAX = 16
"""At a time, each with a thread of its own; what comes beyond is closed at once."""

BREATH_S = 0.1
"""Before the next connection is tried, where one could not be taken (no file descriptor left)."""


class Exporter(ThreadingMixIn, WSGIServer):
    """Serves an application at ``PATH``; each request in a thread of its own."""

    daemon_threads = True

    def __init__(self, host: str, port: int, metrics: WSGIApplication) -> None:
        """Take the port, and serve until ``stop``.

        Raises:
            OSError: it cannot be had.
        """
        first, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self.address_family = first[0]
        self._free = BoundedSemaphore(REQUESTS_MAX)
        self._open: dict[socket.socket, float] = {}
        """Requests that have a thread, and since when (monotonic s)."""
        super().__init__((host, port), _Request)
        self.set_app(_at_its_path(metrics))
        self._serving = Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._serving.start()

    def stop(self) -> None:
        """Take no more requests."""
        self.shutdown()
        self.server_close()
        self._serving.join()

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(BREATH_S)  # it stays in line, and would be tried again at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is one left for it."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._over(request)  # the thread has not begun
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._over(request)

    def service_actions(self) -> None:
        """Close the requests that take too long; called twice a second, and after each request."""
        begun_before = time.monotonic() - REQUEST_S
        for request, begun in list(self._open.items()):
            if begun < begun_before:
                with suppress(OSError):  # it has ended meanwhile
                    request.shutdown(socket.SHUT_RDWR)

    def _over(self, request: socket.socket) -> None:
        del self._open[request]
        self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who goes in the middle of a request or an answer is nobody's fault."""
        if not isinstance(sys.exception(), OSError):
            log.exception("a request for metrics failed")


class _Request(WSGIRequestHandler):
    """Logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """A line for each scrape tells nothing."""


def _at_its_path(metrics: WSGIApplication) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, begin: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == PATH:
            return metrics(environ, begin)
        begin("404 Not Found", [("Content-Type", "text/plain")])
        return [f"Metrics are at {PATH}.\n".encode()]

    return answer
