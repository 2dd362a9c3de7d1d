"""Every metric of the sync service, by name, once. Base units; one prefix.

Labels stay few: a replica is a label on gauges only. A replica's series go when it leaves, a run's
when it is put away.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any, cast
from wsgiref.types import WSGIApplication

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from syncline_proto.tokens import run_tokens
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import Closing, Kind, Saved

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

_VERDICT = {
    pb.VERDICT_ACCEPTED: "accepted",
    pb.VERDICT_DUPLICATE: "duplicate",
    pb.VERDICT_STALE: "stale",
    pb.VERDICT_ANOMALOUS: "anomalous",
    pb.VERDICT_FENCED: "fenced",
}


class Metrics:
    """The process's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.build = Gauge(
            "syncline_build_info", "Always 1; the label tells.", ["version"], registry=r
        )
        self.build.labels(version("syncline")).set(1)
        self.runs = Gauge("syncline_sync_runs", "Runs held in memory.", registry=r)
        self.damaged = Gauge(
            "syncline_run_damaged",
            "1: a file of the run is damaged, and it is not served.",
            ["run"],
            registry=r,
        )
        self.staged = Gauge("syncline_staged_bytes", "Room given to pushes in flight.", registry=r)
        self.pushes = Counter(
            "syncline_pushes_total",
            "Whole pushes judged; one that need not be, counts for every rank that is told so.",
            ["run", "verdict"],
            registry=r,
        )
        self.bytes = Counter(
            "syncline_bytes_total", "Payload bytes moved.", ["run", "direction"], registry=r
        )
        self.rounds = Counter(
            "syncline_rounds_total", "Rounds committed.", ["run", "kind", "closed_by"], registry=r
        )
        self.round_seconds = Histogram(
            "syncline_round_seconds",
            "From a round's first push to its publication.",
            ["run"],
            buckets=_SECONDS,
            registry=r,
        )
        self.commit_seconds = Histogram(
            "syncline_commit_seconds",
            "Writing and syncing a revision.",
            ["run"],
            buckets=_SECONDS,
            registry=r,
        )
        self.revision = Gauge(
            "syncline_fragment_revision", "Newest revision.", ["run", "fragment"], registry=r
        )
        self.tokens = Gauge(
            "syncline_committed_tokens",
            "Tokens folded so far into the last fragment, which are the run's.",
            ["run"],
            registry=r,
        )
        self.sample_size = Gauge(
            "syncline_effective_sample_size",
            "(sum of the last round's weights)^2 / sum of their squares.",
            ["run", "fragment"],
            registry=r,
        )
        each = ["run", "fragment", "replica"]
        self.weight = Gauge(
            "syncline_replica_weight",
            "In the last round; see docs/operations.md.",
            each,
            registry=r,
        )
        self.z = Gauge("syncline_replica_z", "z-score of the last round.", each, registry=r)
        self.norm = Gauge("syncline_replica_norm", "Norm of the last push.", each, registry=r)

        self.of_runs = (
            self.pushes, self.bytes, self.rounds, self.round_seconds, self.commit_seconds,
            self.revision, self.tokens, self.sample_size, self.weight, self.z, self.norm,
        )  # fmt: skip
        """All that have a run for a label; but for ``damaged``, which tells of one not served."""

    def app(self) -> WSGIApplication:
        """What answers a scrape."""
        return cast(Any, prometheus_client).make_wsgi_app(self.registry)

    def of(self, run: str) -> RunMetrics:
        return RunMetrics(self, run)


class RunMetrics:
    """The metrics of one run."""

    def __init__(self, metrics: Metrics, run: str) -> None:
        self._metrics, self._run = metrics, run
        self._bytes: dict[str, Counter] = {}
        """By direction. Counted for every chunk, and to find a series takes longer than that."""
        self._tokens: dict[int, int] = {}
        """Committed, by fragment."""
        self._replicas: set[tuple[str, str]] = set()
        """(fragment, replica) of the series there are."""

    def judged(self, verdict: pb.Verdict.ValueType) -> None:
        self._metrics.pushes.labels(self._run, _VERDICT[verdict]).inc()

    def moved(self, direction: str, size: int) -> None:
        """Count payload bytes; direction is "up" (pushes) or "down" (pulls)."""
        if direction not in self._bytes:
            self._bytes[direction] = self._metrics.bytes.labels(self._run, direction)
        self._bytes[direction].inc(size)

    def commit_seconds(self) -> AbstractContextManager[object]:
        return self._metrics.commit_seconds.labels(self._run).time()

    def stands(self, fragment: int, saved: Saved) -> None:
        """Where a fragment stands: when it starts, and after every round."""
        m, run = self._metrics, self._run
        self._tokens[fragment] = saved.committed_tokens
        m.revision.labels(run, str(fragment)).set(saved.revision)
        m.tokens.labels(run).set(run_tokens(self._tokens))

    def closed(self, fragment: int, closing: Closing, seconds: float) -> None:
        m, run = self._metrics, self._run
        m.rounds.labels(run, closing.kind.value, closing.closed_by.value).inc()
        m.round_seconds.labels(run).observe(seconds)
        self.stands(fragment, closing.saved)
        if closing.kind is not Kind.PSEUDO_GRADIENT:
            return
        m.sample_size.labels(run, str(fragment)).set(closing.effective_sample_size or 0.0)
        for c in closing.saved.contributions:
            series = (str(fragment), c.replica)
            self._replicas.add(series)
            m.weight.labels(run, *series).set(c.weight)
            m.z.labels(run, *series).set(c.z)
            m.norm.labels(run, *series).set(c.norm)

    def members(self, replicas: set[str]) -> None:
        """Drop the series of replicas that have gone."""
        gone = {series for series in self._replicas if series[1] not in replicas}
        for series in gone:
            for gauge in (self._metrics.weight, self._metrics.z, self._metrics.norm):
                gauge.remove(self._run, *series)
        self._replicas -= gone

    def close(self) -> None:
        """Drop all series of the run. What calls that are still ending count is not shown."""
        for metric in self._metrics.of_runs:
            metric.remove_by_labels({"run": self._run})
        self._metrics = Metrics()
