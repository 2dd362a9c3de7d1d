"""Calls of one connection: of those that are taken back at once no more are kept than may be open.

And who asks for more than may be open, and asks again where refused, is answered to the last.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_sync import serving
from syncline_testing.doors import doors, health
from syncline_testing.service import RUN, flat_layout

SERVING = health_pb2.HealthCheckResponse.SERVING
RULES = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)
VALUES = np.full(10, 0.5, np.float32)
BEYOND = 500

# HTTP/2: kinds of frames, their flags, and the codes of a reset.
HEADERS, RESET, SETTINGS = 1, 3, 4
ACK, END_HEADERS = 1, 4
REFUSED_STREAM, CANCEL = b"\0\0\0\7", b"\0\0\0\x08"
HEAD = struct.Struct(">HBBBI")


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEAD.pack(size >> 8, size & 255, kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header field that no table remembers."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


PUSH = b"".join(
    literal(name, value)
    for name, value in {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/syncline.sync.v1.SyncService/Push",
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }.items()
)


def reset_at_once(port: int, calls: int, enough: int) -> int:
    """Begin so many and take each back at once: how many are refused, or ``enough``."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as line,
        line.makefile("rb") as heard,
    ):

        def answers() -> tuple[int, int, bytes]:
            high, low, kind, flags, _ = HEAD.unpack(heard.read(HEAD.size))
            return kind, flags, heard.read(high << 8 | low)

        def flood() -> None:
            for stream in range(1, 2 * calls, 2):
                line.sendall(
                    frame(HEADERS, END_HEADERS, stream, PUSH) + frame(RESET, 0, stream, CANCEL)
                )

        line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS))
        while answers()[:2] != (SETTINGS, 0):
            pass
        line.sendall(frame(SETTINGS, ACK))  # from now on the bound is known here
        sender = threading.Thread(target=flood)
        sender.start()
        refused = 0
        with suppress(TimeoutError):
            while refused < enough:  # gRPC refuses at its leisure, some time after it has read all
                kind, _, payload = answers()
                refused += kind == RESET and payload == REFUSED_STREAM
        sender.join()
        return refused


def test_of_calls_that_are_taken_back_at_once_no_more_are_kept_than_may_be_open(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, token="secret") as (opened, _):
            most = serving.CALLS_MAX
            with ThreadPoolExecutor(1) as aside:  # the service's loop waits, and takes up none
                told = aside.submit(reset_at_once, opened.port, most + 2 * BEYOND, BEYOND)
                assert told.result() == BEYOND
            mine = (("authorization", "Bearer secret"),)
            assert await health(opened.port, "", metadata=mine) == SERVING

    asyncio.run(scenario())


def test_who_asks_for_more_calls_than_a_connection_may_have_and_asks_again_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"grpc.max_concurrent_streams": 50}
    fewer = tuple((name, few.get(name, value)) for name, value in serving.CHANNEL_OPTIONS)
    monkeypatch.setattr(serving, "CHANNEL_OPTIONS", fewer)
    request = pb.PullRequest(run=RUN, fragment=0, revision=1, header_only=True)

    async def scenario() -> None:
        async with doors(tmp_path) as (opened, s):
            await s.members({"a": 1})
            await s.open(flat_layout(VALUES.size), "a")
            await s.offer(VALUES, "a")
            async with grpc.aio.insecure_channel(f"127.0.0.1:{opened.port}") as channel:
                stub: Any = sync_pb2_grpc.SyncServiceStub(channel)

                async def revision() -> int:
                    while True:
                        try:
                            return (await stub.Pull(request, timeout=60).read()).header.revision
                        except grpc.aio.AioRpcError as error:
                            assert error.code() is grpc.StatusCode.UNAVAILABLE, error
                            await asyncio.sleep(0.1)

                pulls = [asyncio.create_task(revision()) for _ in range(1000)]
                await s.push(VALUES, "a", base_revision=0)
                assert set(await asyncio.gather(*pulls)) == {1}

    asyncio.run(scenario())
