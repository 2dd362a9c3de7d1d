"""What Prometheus is told. Every metric's name is in this file and nowhere else.

What belongs to runs and replicas is read from a snapshot at each scrape, so the series of
what has left are gone with it. Nothing here is global: each app has its own registry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from syncline_control.operations.fleet import Snapshot
from syncline_proto.rest import ReplicaState, RunState


class Metrics:
    """The registry of one control plane."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._fleet = _Fleet()
        self._registry.register(self._fleet)
        self._seconds = Histogram(
            "syncline_http_request_seconds",
            "Time until the answer to a request starts; long polls wait on purpose.",
            ["method", "route", "status"],
            registry=self._registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note one answer. ``route`` is the template, never the path: series stay few."""
        verb = method if method in _METHODS else "other"
        self._seconds.labels(verb, route, str(status)).observe(seconds)

    def text(self, fleet: Snapshot, event_counts: Mapping[str, int]) -> bytes:
        """Return everything in Prometheus' text format."""
        self._fleet.snapshot = fleet
        self._fleet.event_counts = event_counts
        return generate_latest(self._registry)


class _Fleet(Collector):
    """Turns the last snapshot into series."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.event_counts: Mapping[str, int] = Counter[str]()

    def collect(self) -> Iterable[Metric]:
        yield _gauge("syncline_build_info", "Which version runs.", version=version("syncline"))
        states = GaugeMetricFamily("syncline_runs", "Runs by state.", labels=["state"])
        for state in RunState:
            states.add_metric([state], self.snapshot.states.get(state, 0))
        yield states
        yield from self._of_runs()
        yield from self._of_replicas()
        events = CounterMetricFamily(
            "syncline_events", "Events since this control plane started.", labels=["kind"]
        )
        for kind, count in sorted(self.event_counts.items()):
            events.add_metric([kind], count)
        yield events

    def _of_runs(self) -> Iterable[Metric]:
        tokens = GaugeMetricFamily(
            "syncline_run_committed_tokens",
            "Tokens committed to the last fragment.",
            labels=["run"],
        )
        revision = GaugeMetricFamily(
            "syncline_run_revision", "Smallest revision over the fragments.", labels=["run"]
        )
        lost = CounterMetricFamily(
            "syncline_leases_lost", "Replicas whose lease ran out.", labels=["run"]
        )
        count = GaugeMetricFamily(
            "syncline_replicas",
            "Replicas: alive (draining ones too), taking part in the last round, draining, wanted.",
            labels=["run", "state"],
        )
        data = GaugeMetricFamily(
            "syncline_data_sequences",
            "Sequences of leased data, over all epochs: trained, excluded, leased now.",
            labels=["run", "state"],
        )
        for run in self.snapshot.runs:
            name = run.view.name
            draining = sum(one.state == ReplicaState.DRAINING for one in run.replicas)
            tokens.add_metric([name], run.view.committed_tokens)
            revision.add_metric([name], run.view.revision)
            lost.add_metric([name], run.leases_lost)
            count.add_metric([name, "alive"], len(run.replicas))
            count.add_metric([name, "taking_part"], run.view.replicas_taking_part)
            count.add_metric([name, "draining"], draining)
            if run.view.replicas_wanted is not None:
                count.add_metric([name, "wanted"], run.view.replicas_wanted)
            if run.data.dataset is not None:
                data.add_metric([name, "trained"], run.data.trained)
                data.add_metric([name, "excluded"], run.data.excluded)
                data.add_metric([name, "leased"], run.data.leased)
        return tokens, revision, lost, count, data

    def _of_replicas(self) -> Iterable[Metric]:
        labels = ["run", "replica"]
        loss = GaugeMetricFamily(
            "syncline_replica_loss", "Last training loss, nats per token.", labels=labels
        )
        speed = GaugeMetricFamily(
            "syncline_replica_tokens_per_second", "Training speed.", labels=labels
        )
        exposed = GaugeMetricFamily(
            "syncline_replica_exposed_sync_seconds",
            "Time that training has waited for synchronisation, since the replica's start.",
            labels=labels,
        )
        steps = GaugeMetricFamily(
            "syncline_replica_inner_steps", "Inner steps done.", labels=labels
        )
        pace = GaugeMetricFamily(
            "syncline_replica_pace_ratio",
            "Inner steps a second of its own time, over the median of the others'.",
            labels=labels,
        )
        straggles = GaugeMetricFamily(
            "syncline_replica_straggles", "1: it is named as a straggler.", labels=labels
        )
        share = GaugeMetricFamily(
            "syncline_replica_step_share_ratio",
            "Of a round's inner steps, so many it is to make.",
            labels=labels,
        )
        for run in self.snapshot.runs:
            for one in run.replicas:
                key, progress = [run.view.name, one.replica], one.progress
                if progress.loss is not None:
                    loss.add_metric(key, progress.loss)
                if progress.tokens_per_second is not None:
                    speed.add_metric(key, progress.tokens_per_second)
                exposed.add_metric(key, progress.exposed_sync_s)
                steps.add_metric(key, progress.inner_step)
                if one.pace is not None:
                    pace.add_metric(key, one.pace)
                straggles.add_metric(key, one.straggles)
                share.add_metric(key, one.step_share)
        return loss, speed, exposed, steps, pace, straggles, share


def _gauge(name: str, text: str, **labels: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
