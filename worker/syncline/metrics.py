"""A replica's figures for Prometheus: every metric of the worker, by name, once; base units.

    with syncline.Replica(model, optimizer, run="my-run") as replica, serve(replica, 9103):
        ...

Values are read when somebody asks. The control plane shows of every replica what its heartbeats
say (``syncline_replica_*``); what is here is asked of the replica itself, and is more, and newer.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from syncline.replica import Replica
from syncline.voice import own_rank
from syncline_proto.errors import ConfigError, PortInUse
from syncline_proto.exporter import Exporter

LOOPBACK = "127.0.0.1"

LABELS = ("run", "replica")


class Figures(Collector):
    """One replica's, as they are at the moment of a scrape; counters begin anew with each life."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def collect(self) -> Iterator[Metric]:
        replica = self._replica
        stats, said = replica.stats, dict(replica.reported)
        if (pace := replica.tokens_per_second) is not None:
            said["tokens_per_second"] = pace
        build = GaugeMetricFamily(
            "syncline_build_info", "Always 1; the label tells.", labels=["version"]
        )
        build.add_metric([version("syncline")], 1)
        yield build
        for name, text, count in (
            ("tokens", "Tokens of this replica, in finished inner steps.", replica.tokens),
            ("inner_steps", "Optimizer steps.", replica.inner_step),
            ("rounds", "Merged rounds, as the last fragment counts them.", stats.rounds),
            ("exposed_sync_seconds", "Training waited for synchronisation.", stats.exposed_sync_s),
            ("hook_seconds", "Syncline's hooks took besides.", stats.hook_s),
            ("paused_seconds", "The run was paused.", stats.paused_s),
            ("stale_pushes", "Pushes too late to count, over all fragments.", stats.stale),
            ("aged_pushes", "Pushes that counted late, over all fragments.", stats.aged),
            ("anomalous_pushes", "Pushes of weight 0, over all fragments.", stats.anomalous),
        ):
            yield self._counter(name, text, count)
        moved = CounterMetricFamily(
            "syncline_worker_bytes",
            "Payload bytes of all ranks: up (pushes), down (pulls).",
            labels=[*LABELS, "direction"],
        )
        moved.add_metric([*self._labels, "up"], stats.bytes_up)
        moved.add_metric([*self._labels, "down"], stats.bytes_down)
        yield moved
        yield self._gauge("last_age", "Of the last aged push, in revisions.", stats.last_age)
        yield self._gauge("revision", "The smallest over the fragments.", replica.revision)
        yield self._gauge(
            "run_tokens",
            "Everybody's, as schedules count them.",
            replica.run_tokens,
        )
        for name, key, text in (
            ("loss", "loss", "Last training loss, nats per token."),
            ("grad_norm", "grad_norm", "The gradient's norm before clipping."),
            ("inner_lr", "inner_lr", "Learning rate of the inner optimizer."),
            ("tokens_per_second", "tokens_per_second", "Training speed of this replica."),
            ("mfu_ratio", "mfu", "Model flops a second, as a share of the devices' peak."),
        ):
            if key in said:
                yield self._gauge(name, text, said[key])

    @property
    def _labels(self) -> list[str]:
        return [self._replica.run, self._replica.name]

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"syncline_worker_{name}", text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"syncline_worker_{name}", text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family


@contextmanager
def serve(
    replica: Replica, port: int, host: str = LOOPBACK, setting: str = "port="
) -> Iterator[None]:
    """Serve ``/metrics`` while inside, on a thread of its own; on rank 0, nothing on the others.

    Anybody who reaches the port may read: ``host`` is this machine alone, unless told otherwise.
    Who connects and asks nothing takes no more than a few threads, and those not for long.

    Args:
        setting: what to change where the port cannot be had.

    Raises:
        PortInUse: another process listens there. Each replica of a machine needs its own port.
        ConfigError: the host is not this machine's, or the port is not allowed.
    """
    if own_rank() != 0:
        yield
        return
    registry = CollectorRegistry()
    registry.register(Figures(replica))
    try:
        exporter = Exporter(host, port, make_wsgi_app(registry))
    except OSError as error:
        raise _refused(error, host, port, setting) from None
    try:
        yield
    finally:
        exporter.stop()


def _refused(error: OSError, host: str, port: int, setting: str) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"Another process listens on {host} port {port}; end it, or choose another port for "
            f"this replica's metrics with {setting}."
        )
    return ConfigError(
        f"Cannot serve metrics on {host} port {port} ({error.strerror or error}); change {setting}."
    )
