"""Who connects to the sync service and wants nothing, or more than there is: closed, no harm."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from syncline_proto import exporter
from syncline_proto.rest import Member, Membership, RunMembership, RunState
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_proto.v1 import sync_pb2_grpc
from syncline_sync import serving
from syncline_sync.files import SEAL
from syncline_testing.cluster import free_ports
from syncline_testing.doors import doors, health
from syncline_testing.processes import python
from syncline_testing.service import RUN, flat_layout
from syncline_testing.waiting import wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOTHING = b""
NO_CALL = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""HTTP/2's preface and empty settings."""

ALLOWED = 128
"""File descriptors."""


def hurry(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Shorten these waits of both gRPC ports, where they have them."""
    for options in ("CHANNEL_OPTIONS", "PROBE_OPTIONS"):
        hurried = [
            (name, 500 if name in names else value) for name, value in getattr(serving, options)
        ]
        monkeypatch.setattr(serving, options, tuple(hurried))


async def closed(port: int, said: bytes) -> None:
    """Connect, say this and no more, and wait until the service closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(said)
        async with asyncio.timeout(20):
            while await reader.read(1000):
                pass
    finally:
        writer.close()


def test_who_connects_and_says_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch, "grpc.server_handshake_timeout_ms")
    monkeypatch.setattr(exporter, "REQUEST_S", 0.5)

    async def scenario() -> None:
        async with doors(tmp_path) as (opened, _):
            ports = (opened.port, opened.health_port, opened.metrics_port)
            await asyncio.gather(*(closed(port, NOTHING) for port in ports))

    asyncio.run(scenario())


def test_who_calls_nothing_for_long_is_closed_and_a_channel_connects_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch, "grpc.max_connection_idle_ms")

    async def calls_again(port: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            for _ in range(2):
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
                assert answer.status == SERVING
                async with asyncio.timeout(20):
                    await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)

    async def scenario() -> None:
        async with doors(tmp_path) as (opened, _):
            ports = (opened.port, opened.health_port)
            await asyncio.gather(*(closed(port, NO_CALL) for port in ports))
            await asyncio.gather(*(calls_again(port) for port in ports))

    asyncio.run(scenario())


def test_the_plain_port_answers_a_check_and_holds_nothing_for_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one who watches, nor one whose request never comes."""
    hurry(monkeypatch, "grpc.max_connection_age_ms", "grpc.max_connection_age_grace_ms")

    async def scenario() -> None:
        async with doors(tmp_path, token="secret") as (opened, _):
            address = f"127.0.0.1:{opened.health_port}"
            async with grpc.aio.insecure_channel(address) as channel:
                stub: Any = health_pb2_grpc.HealthStub(channel)
                watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
                assert await watch.code() is grpc.StatusCode.UNIMPLEMENTED
                check: Any = channel.stream_unary("/grpc.health.v1.Health/Check")
                assert await check(timeout=20).code() is grpc.StatusCode.UNAVAILABLE
            assert await health(opened.health_port, "") == SERVING

    asyncio.run(scenario())


def test_metrics_have_few_requests_at_a_time_and_go_on_when_those_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "REQUESTS_MAX", 2)

    async def scenario() -> None:
        async with doors(tmp_path) as (opened, _):
            port = opened.metrics_port
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            await closed(port, NOTHING)
            for _, writer in silent:
                writer.close()
            async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(20):
                while True:
                    try:
                        answer = await client.get(f"http://127.0.0.1:{port}/metrics")
                    except httpx.TransportError:
                        continue  # until the service has heard that they are gone
                    break
            assert "syncline_build_info" in answer.text

    asyncio.run(scenario())


STARTED = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100, {ALLOWED}))
from syncline_sync.command import main
main()
"""


def test_more_connections_than_descriptors_leave_enough_for_the_store(tmp_path: Path) -> None:
    run = RunMembership(
        run=RUN,
        state=RunState.RUNNING,
        settings=RunSettings(),
        settings_version=1,
        members=[Member(replica="a", incarnation=1)],
    )
    word = Membership(version=1, runs=[run])
    (tmp_path / "membership.json").write_bytes(SEAL.close(word.model_dump_json()))
    flags = ("port", "health-port", "metrics-port")
    ports = dict(zip(flags, free_ports(3), strict=True))
    given = [word for flag, port in ports.items() for word in (f"--{flag}", str(port))]
    given += ["--data", str(tmp_path), "--control", "http://127.0.0.1:9"]
    with python("-c", STARTED, *given) as process, ExitStack() as open_ones:
        channel = open_ones.enter_context(grpc.insecure_channel(f"127.0.0.1:{ports['port']}"))
        grpc.channel_ready_future(channel).result(timeout=60)
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert limits == (ALLOWED, ALLOWED), "it has taken all that it may"
        for port in (ports["port"], ports["health-port"]):
            idle = [open_ones.enter_context(_connected(port)) for _ in range(150)]
            wait_until(_are_closed(idle, 75), 20, "what comes beyond its share is closed")
        stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
        layout = flat_layout().to_proto()
        stub.OpenRun(
            pb.OpenRunRequest(run=RUN, replica="a", incarnation=1, layout=layout), timeout=20
        )
        assert process.poll() is None
    assert (tmp_path / "runs" / RUN / "layout.json").exists()


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.setblocking(False)
    return connection


def _are_closed(connections: list[socket.socket], least: int) -> Callable[[], bool]:
    """Whether the other side has closed so many."""

    def is_closed(connection: socket.socket) -> bool:
        try:
            return connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    return lambda: sum(map(is_closed, connections)) >= least
