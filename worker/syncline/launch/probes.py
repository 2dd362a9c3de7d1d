"""Is a service ready? Asked over the wire, with a bound on every question."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import grpc
import httpx

from syncline.launch.processes import Process, error_of_exit
from syncline_proto.errors import SynclineError, Unreachable

ASK_S = 1.0
PAUSE_S = 0.05
READY_S = 60.0
"""Imports on a cold, slow disk included."""

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"
"""HealthCheckResponse(status=SERVING), as grpc.health.v1 has it on the wire."""

_SPEAKER = re.compile(r"^(error|syncline[a-z-]*): ")
"""How our programs begin their last sentence."""

CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0),)


def wait_ready(
    process: Process, is_ready: Callable[[], bool], *, within_s: float = READY_S
) -> None:
    """Return when the process is ready.

    Raises:
        SynclineError: it ended, with the class of its exit code and its own last words.
        Unreachable: it was not ready within the time.
    """
    end = time.monotonic() + within_s
    while not is_ready():
        if process.exit_code is not None:
            raise own_error(process)
        if time.monotonic() > end:
            raise Unreachable(
                f"{process.name} was not ready within {within_s:.0f} s; "
                f"its log is {process.command.log}."
            )
        time.sleep(PAUSE_S)


def own_error(process: Process) -> SynclineError:
    """Return the error with which a process ended, said as it said it; else its ``failure``."""
    kind, said = error_of_exit(process.exit_code or 0), own_words(process)
    if kind is None or not said:
        return process.failure()
    return kind(f"{process.name}: {said} (log: {process.command.log})")


def own_words(process: Process) -> str:
    """The last sentence of a process that has ended; "" where it said nothing."""
    words = process.last_words(1)
    return _SPEAKER.sub("", words[0]) if words else ""


def http_ready(url: str) -> bool:
    """Whether the URL answers with 200."""
    try:
        return httpx.get(url, timeout=ASK_S, trust_env=False).status_code == httpx.codes.OK
    except httpx.RequestError:
        return False


def is_refused(address: str) -> bool:
    """Whether nobody listens at HOST:PORT, and its machine says so."""
    parts = urlsplit(f"//{address}")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=ASK_S):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False


def grpc_serving(address: str, within_s: float = ASK_S, token: str | None = None) -> bool:
    """Whether the standard gRPC health service there says SERVING; its own port wants no token."""
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        check = channel.unary_unary(
            _HEALTH_CHECK,
            request_serializer=bytes,
            response_deserializer=bytes,
        )
        try:
            answer = check(b"", timeout=within_s, metadata=metadata, wait_for_ready=True)
            return answer == _SERVING
        except grpc.RpcError:
            return False
