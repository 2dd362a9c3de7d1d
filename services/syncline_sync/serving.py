"""The process's doors: gRPC with health and reflection, plain health for probes, /metrics.

Binds everything before anything is served, so that a port in use is told at once and nothing
half-started stays behind.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from syncline_proto.errors import ConfigError, PortInUse
from syncline_proto.exporter import Exporter
from syncline_proto.v1 import checkpoints_pb2, checkpoints_pb2_grpc, sync_pb2, sync_pb2_grpc
from syncline_sync.checkpoints import CheckpointServicer
from syncline_sync.descriptors import limit
from syncline_sync.durability import remedy
from syncline_sync.guard import TokenGuard
from syncline_sync.metrics import Metrics
from syncline_sync.reading import Reader
from syncline_sync.servicer import SyncServicer
from syncline_sync.settings import SyncSettings
from syncline_sync.statuses import Statuses

# The health package ships without types; this file is the only one that touches it.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownParameterType=false

SERVICE = sync_pb2.DESCRIPTOR.services_by_name["SyncService"].full_name
CHECKPOINTS = checkpoints_pb2.DESCRIPTOR.services_by_name["CheckpointService"].full_name
STOP_GRACE_S = 2.0

CALLERS_MAX, CALLERS_SHARE = 8_192, 1 / 2
"""Connections to the gRPC port: so many at most, since each costs memory, and no more than this
share of the file descriptors. One that comes beyond that is closed at once.

The rest is for the store, the line to the control plane and the other two ports.
"""

PROBES_MAX, PROBES_SHARE = 256, 1 / 8
"""The same of the health port."""

_LINE_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # Nothing is compressed (bit 0: as it is). What is would be inflated before it came to us, by a
    # thousand; gRPC 1.76 sets no bound to that.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Who connects and does not begin to speak HTTP/2 is closed; so is who has had no call for
    # long, and clients, which close after half an hour themselves, connect anew with the next.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 3_600_000),
    # A client whose machine is gone is noticed, and its calls end, within this time.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Clients may ping this often without being told off, so that dead links show quickly.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)

CALLS_MAX = 8_192
"""Calls of a connection, those included that were taken back and are not forgotten yet.

Each costs about 14 KiB of heap, so who opens calls and takes them back at once makes no more of it.
A rank has one for each fragment that is under way, so this is far above what it needs. A call
beyond it waits at the client, or is refused as UNAVAILABLE and made again. Pulls that wait would so
hold up later pushes; those of the fragments before them end as the other replicas push these, and
all push in the same order.
"""

AHEAD_MAX, AHEAD_SHARE = 4 << 20, 1 / 16
"""Of each call that sends chunks, what gRPC takes in before it is asked for the next.

So many bytes, and no more than this share of the room for pushes; up to twice as many where it
renews the window before that is read out (1.9 times were seen). Left to itself gRPC measures the
line: of one call 12 MiB were seen, of 64 calls 258, which no budget knows of. Four calls at a time,
as a rank has, moved 173 Mbit/s with 4 MiB over a line of 200 Mbit/s and 100 ms, and 177 without.
"""

PENDING_MAX = 4 * CALLS_MAX
"""Of all connections, what the loop has not taken up yet; gRPC throws the rest away, CANCELLED.

Left to itself it does so with some from 1,000 on, and with all from 3,000 on.
"""

PENDING_S = 30
"""A call that the loop has not taken up for so long, gRPC throws away likewise."""

CHANNEL_OPTIONS = (
    *_LINE_OPTIONS,
    ("grpc.max_concurrent_streams", CALLS_MAX),
    ("grpc.server.max_pending_requests", PENDING_MAX),
    ("grpc.server.max_pending_requests_hard_limit", PENDING_MAX),
    ("grpc.server_max_unrequested_time_in_server", PENDING_S),
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.max_send_message_length", 8 << 20),
)

PROBE_OPTIONS = (
    *_LINE_OPTIONS,
    ("grpc.max_receive_message_length", 4 << 10),
    ("grpc.max_concurrent_streams", 16),
    # Also ends a check whose request never comes.
    ("grpc.max_connection_age_ms", 60_000),
    ("grpc.max_connection_age_grace_ms", 5_000),
)
"""Of the port that wants no token: a health check is a name, and soon over."""


@dataclass(frozen=True, slots=True)
class Doors:
    """Bound and not yet open; the ports are those that were taken where 0 was asked for."""

    port: int
    health_port: int
    metrics_port: int
    server: grpc.aio.Server
    probes: grpc.aio.Server
    status: health.aio.HealthServicer
    exporter: Exporter

    async def open(self) -> None:
        """Start to serve, and say so to health checks."""
        await self.server.start()
        await self.probes.start()
        for name in ("", SERVICE, CHECKPOINTS):
            await self.status.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        """Say not serving, let calls end for a moment, then cut them."""
        await self.status.enter_graceful_shutdown()
        await asyncio.gather(self.server.stop(STOP_GRACE_S), self.probes.stop(STOP_GRACE_S))
        await asyncio.to_thread(self.exporter.stop)  # up to half a second


def bind(
    settings: SyncSettings,
    servicer: SyncServicer,
    checkpoints: CheckpointServicer,
    metrics: Metrics,
    fail: Callable[[BaseException], None],
) -> Doors:
    """Take the three ports; ``fail`` is told what must stop the process.

    Raises:
        PortInUse: another process has one of them; the message names it and its flag.
        ConfigError: the host is not this machine's, or the port is not allowed.
    """
    status = health.aio.HealthServicer()
    statuses = Statuses(fail)
    guards = [TokenGuard(settings.token)] if settings.token else []
    server = grpc.aio.server(
        interceptors=[statuses, *guards, Reader()],
        options=(
            *CHANNEL_OPTIONS,
            *read_ahead(settings.staging_bytes),
            _at_most(CALLERS_MAX, CALLERS_SHARE),
        ),
    )
    sync_pb2_grpc.add_SyncServiceServicer_to_server(servicer, server)
    checkpoints_pb2_grpc.add_CheckpointServiceServicer_to_server(checkpoints, server)
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    names = (SERVICE, CHECKPOINTS, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    probes = grpc.aio.server(
        interceptors=[statuses, Reader()],
        options=(*PROBE_OPTIONS, _at_most(PROBES_MAX, PROBES_SHARE)),
    )
    probes.add_generic_rpc_handlers((_check_alone(status),))
    host = settings.host.strip("[]")
    port = _bind(server, host, settings.port, "port")
    health_port = _bind(probes, host, settings.health_port, "health-port")
    try:
        exporter = Exporter(host, settings.metrics_port, metrics.app())
    except OSError as error:
        raise _refused(error, host, settings.metrics_port, "metrics-port") from error
    return Doors(port, health_port, exporter.server_port, server, probes, status, exporter)


def read_ahead(staging_bytes: int) -> tuple[tuple[str, int], ...]:
    """The options that bound what is taken in of a call beyond the room for pushes."""
    bound = min(AHEAD_MAX, int(AHEAD_SHARE * staging_bytes))
    return (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", bound))


def _at_most(most: int, share: float) -> tuple[str, int]:
    """The option that bounds a port's connections."""
    bound = max(1, min(most, int(share * limit())))
    return ("grpc.max_allowed_incoming_connections", bound)


def _check_alone(status: health.aio.HealthServicer) -> grpc.GenericRpcHandler:
    """The health service without Watch, which would hold memory for whoever asks."""
    check = grpc.unary_unary_rpc_method_handler(
        status.Check,
        health_pb2.HealthCheckRequest.FromString,
        health_pb2.HealthCheckResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"Check": check})


def address(host: str, port: int) -> str:
    """HOST:PORT, with the brackets that an IPv6 address needs."""
    return f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(server: grpc.aio.Server, host: str, port: int, flag: str) -> int:
    try:
        _try_to_listen(host, port)
        return server.add_insecure_port(address(host, port))
    except OSError as error:
        raise _refused(error, host, port, flag) from error
    except RuntimeError as error:  # somebody was quicker
        raise _refused(OSError(errno.EADDRINUSE, ""), host, port, flag) from error


def _try_to_listen(host: str, port: int) -> None:
    """Listen as gRPC will, and stop: its own refusal would come with lines of its C core.

    Raises:
        OSError: none of the host's addresses can be listened on; the last one's reason.
    """
    refusal: OSError | None = None
    for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
                probe.listen(1)
                return
        except OSError as error:
            refusal = error
    if refusal is not None:
        raise refusal


def _refused(error: OSError, host: str, port: int, flag: str) -> ConfigError:
    """What to do about a door that does not open; ``flag`` is the one that names its port."""
    variable = f"SYNCLINE_SYNC_{flag.replace('-', '_').upper()}"
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"Another process listens on {host} port {port}; end it or choose another --{flag} "
            f"({variable})."
        )
    why = f"Cannot listen on {host} port {port} ({error.strerror or error})"
    another = f"choose another --host (SYNCLINE_SYNC_HOST) or --{flag} ({variable})"
    mend = remedy(error, another)
    return ConfigError(f"{why}; {mend}." if mend is another else f"{why}. {mend}.")
