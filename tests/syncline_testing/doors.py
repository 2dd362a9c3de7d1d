"""The sync service's real doors on free ports, and a health check for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from syncline_proto.settings import RunSettings
from syncline_sync.checkpoints import CheckpointServicer
from syncline_sync.servicer import SyncServicer
from syncline_sync.serving import Doors, bind
from syncline_sync.settings import SyncSettings
from syncline_testing.service import Service, service


@asynccontextmanager
async def doors(folder: Path, token: str = "") -> AsyncIterator[tuple[Doors, Service]]:
    """Open them for a service over ``folder``, until the block ends."""
    async with service(folder, RunSettings()) as s:
        settings = SyncSettings(port=0, health_port=0, metrics_port=0, token=token)
        opened = bind(settings, *servicers(s), s.shared.metrics, s.shared.fail)
        await opened.open()
        try:
            yield opened, s
        finally:
            await opened.close()


def servicers(s: Service) -> tuple[SyncServicer, CheckpointServicer]:
    """What answers behind the doors."""
    return SyncServicer(s.host, s.residence, s.shared), CheckpointServicer(s.residence, s.shared)


async def health(port: int, name: str, **call: Any) -> int:
    """Ask once, over a connection of its own."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10, **call)
        return answer.status
