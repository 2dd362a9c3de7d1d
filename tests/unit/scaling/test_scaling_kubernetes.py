"""Kubernetes' own client against a server that speaks the scale subresource."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline.scaling.kubernetes import Kubernetes, api
from syncline_proto.errors import ConfigError, Forbidden, Unreachable
from syncline_testing.scales import Cluster, cluster_at_hand


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with cluster_at_hand(tmp_path, monkeypatch) as made:
        yield made


def test_a_statefulset_is_scaled_by_its_subresource_alone(cluster: Cluster) -> None:
    cluster.replicas = {("statefulsets", "worker"): 2, ("statefulsets", "sync"): 1}
    workload = Kubernetes(api(), "syncline", "statefulset", "worker")
    observed = workload.look()
    assert (observed.replicas, observed.starts_again) == (2, True)
    workload.scale(5)
    assert workload.look().replicas == 5
    workload.scale(0)
    assert workload.look().replicas == 0
    assert cluster.replicas[("statefulsets", "sync")] == 1
    assert {verb for verb, _, _ in cluster.calls} == {"GET", "PATCH"}
    patched = {(path, kind) for verb, path, kind in cluster.calls if verb == "PATCH"}
    assert patched == {
        (
            "/apis/apps/v1/namespaces/syncline/statefulsets/worker/scale",
            "application/merge-patch+json",
        )
    }


def test_a_deployment_is_scaled_likewise(cluster: Cluster) -> None:
    cluster.replicas = {("deployments", "worker"): 1}
    workload = Kubernetes(api(), "syncline", "deployment", "worker")
    workload.scale(3)
    assert cluster.replicas == {("deployments", "worker"): 3}
    assert str(workload) == "deployment/worker"


def test_whose_replicas_are_its_own_is_known_by_their_names(cluster: Cluster) -> None:
    cluster.replicas = {("statefulsets", "worker"): 1, ("deployments", "worker"): 1}
    stateful = Kubernetes(api(), "syncline", "statefulset", "worker").look().is_own
    assert stateful("worker-0") and stateful("worker-12")
    others = ("worker", "worker-0-1", "worker-b", "xworker-0", "worker-7d9f8c-abcde")
    assert not [name for name in others if stateful(name)]
    hashed = Kubernetes(api(), "syncline", "deployment", "worker").look().is_own
    assert hashed("worker-7d9f8c6b54-x2x9k") and not hashed("worker-0")


def test_what_fails_is_told_as_what_it_is(cluster: Cluster) -> None:
    workload = Kubernetes(api(), "syncline", "statefulset", "nobody")
    with pytest.raises(ConfigError, match="no statefulset/nobody in the namespace syncline"):
        workload.look()
    for status, error in ((403, Forbidden), (401, Forbidden), (503, Unreachable)):
        cluster.refuses = status
        with pytest.raises(error):
            workload.scale(1)


@pytest.mark.parametrize(
    "body",
    [b"<html>Log in</html>", b"{", b"null", b"[]", b"\xff", b'{"spec": {"replicas": "two"}}'],
)
def test_an_answer_that_is_no_scale_is_asked_for_again(cluster: Cluster, body: bytes) -> None:
    """A proxy that answers in the API server's place, for a while, must not end the scaler."""
    cluster.replicas = {("statefulsets", "worker"): 2}
    workload = Kubernetes(api(), "syncline", "statefulset", "worker")
    cluster.instead = body
    for act in (workload.look, lambda: workload.scale(3)):
        with pytest.raises(Unreachable, match="no scale"):
            act()
    cluster.instead = None
    assert workload.look().replicas == 3


@pytest.mark.parametrize(("refuses", "why"), [(503, "503"), (0, "does not answer")])
def test_a_cluster_that_is_away_is_not_asked_twice(
    cluster: Cluster, refuses: int, why: str
) -> None:
    cluster.refuses, cluster.hangs_up = refuses, not refuses
    workload = Kubernetes(api(), "syncline", "statefulset", "worker")
    for number, act in enumerate((workload.look, lambda: workload.scale(3)), 1):
        with pytest.raises(Unreachable, match=why):
            act()
        assert len(cluster.calls) == number, "whoever looks again has its own patience"


def test_without_a_cluster_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no cluster is named"):
        api()
