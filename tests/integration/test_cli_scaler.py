"""``syncline scaler`` between a real control plane and a cluster that can only scale."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from syncline.launch.client import OperatorClient
from syncline.launch.ports import free_ports
from syncline.launch.probes import http_ready, wait_ready
from syncline.launch.processes import Command, Crew
from syncline.scaling.core import FAILURES_MAX
from syncline.scaling.kubernetes import Kubernetes, api
from syncline.scaling.watch import Done, Scaler
from syncline_proto.errors import ConfigError
from syncline_testing.scales import Cluster, cluster_at_hand
from syncline_testing.shell import Shell

WORKER = ("statefulsets", "worker")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A control plane."""
    folder = tmp_path_factory.mktemp("control")
    port = free_ports(1)[0]
    argv = [sys.executable, "-m", "syncline_control", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--database", str(folder / "control.db")]
    with Crew() as crew:
        process = crew.start(Command(name="control", argv=argv, folder=folder, env={}))
        wait_ready(process, lambda: http_ready(f"http://127.0.0.1:{port}/readyz"))
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster with a StatefulSet of two replicas."""
    with cluster_at_hand(tmp_path, monkeypatch) as made:
        made.replicas[WORKER] = 2
        yield made


@pytest.fixture
def shell(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.setenv("SYNCLINE_CONTROL", url)
    return Shell(capsys)


def post(url: str, path: str, body: dict[str, Any]) -> None:
    httpx.post(f"{url}/v1/{path}", json=body, trust_env=False).raise_for_status()


def test_what_is_asked_for_is_made_so_once(shell: Shell, url: str, cluster: Cluster) -> None:
    timeouts = {"profile": "wan", "lease": 300}  # nobody beats for these
    post(url, "runs", {"name": "first", "settings": {"timeouts": timeouts}})
    for name in ("worker-0", "guest"):
        post(url, "runs/first/replicas", {"replica": name})
    once = "scaler first --kubernetes syncline/worker --once"
    assert shell(once) == (0, "", ""), "nobody has said how many"
    shell("runs scale first 4")
    said = (
        "statefulset/worker goes from 2 to 3 replicas: first should have 4, and 1 is elsewhere.\n"
    )
    assert shell(once) == (0, said, "")
    assert cluster.replicas[WORKER] == 3
    assert shell(once) == (0, "", "")
    shell("runs scale first 2")
    code, out, _ = shell(f"{once} --json")
    told = json.loads(out)
    assert (code, told["before"], told["after"]) == (0, 3, 1)
    assert told["said"].endswith("each within its terminationGracePeriodSeconds.")


def test_it_ends_with_its_run_and_so_do_the_replicas(
    shell: Shell, url: str, cluster: Cluster
) -> None:
    post(url, "runs", {"name": "short"})
    shell("runs stop short")
    said = "statefulset/worker goes from 2 to 0 replicas: short has ended. The highest numbers"
    code, out, _ = shell("scaler short --kubernetes syncline/worker --every 0.2")
    assert code == 0 and out.startswith(said)
    assert cluster.replicas[WORKER] == 0


def test_of_all_runs_those_that_were_scaled_have_a_workload_each(
    shell: Shell, url: str, cluster: Cluster
) -> None:
    for name in ("lone", "left", "right"):
        post(url, "runs", {"name": name})
        cluster.replicas[("statefulsets", f"{name}-worker")] = 1
    shell("runs scale left 2")
    shell("runs scale right 3")
    shell("runs scale first --any")  # of another test: there is no workload of its name
    assert shell("scaler --kubernetes syncline/{run}-worker --once")[0] == 0
    found = [cluster.replicas[("statefulsets", f"{n}-worker")] for n in ("lone", "left", "right")]
    assert found == [1, 2, 3]
    code, said = shell.refused("scaler --kubernetes syncline/worker --once")
    assert code == 10 and "{run}" in said


def test_wrong_words_are_told(shell: Shell, cluster: Cluster) -> None:
    for line, why in (
        ("scaler r --once", "--kubernetes or --compose"),
        ("scaler r --kubernetes worker --once", "NAMESPACE/NAME"),
        ("scaler r --kubernetes a/pod/worker --once", "NAMESPACE/NAME"),
        ("scaler r --compose a.yml --kubernetes a/b --once", "--kubernetes or --compose"),
    ):
        code, said = shell.refused(line)
        assert code == 10 and why in said
    code, said = shell.refused("scaler r --compose nowhere.yml")
    assert code == 12 and "nowhere.yml does not exist" in said
    assert shell.refused("scaler nobody --kubernetes syncline/worker --once")[0] == 15


def test_what_fails_holds_up_no_other_run_and_ends_it_at_last(url: str, cluster: Cluster) -> None:
    for name in ("good", "bad"):
        post(url, "runs", {"name": name})
        httpx.put(f"{url}/v1/runs/{name}/scale", json={"replicas": 2}, trust_env=False)
    cluster.replicas[("statefulsets", "good")] = 0
    told, warned, waits = list[Done](), list[str](), list[float]()
    apps = api()
    with OperatorClient(url) as client:
        watch = Scaler(
            client,
            None,
            lambda run: Kubernetes(apps, "syncline", "statefulset", run),
            told.append,
            warned.append,
        )
        with pytest.raises(ConfigError, match="no statefulset/"):
            watch.follow(1.0, waits.append)
    assert [(one.change.run, one.change.after) for one in told if one.change.run == "good"] == [
        ("good", 2)
    ]
    assert len(warned) == 1, "the same sentence once"
    assert f"Trying again, {FAILURES_MAX} times in a row at most." in warned[0]
    assert len(waits) == FAILURES_MAX - 1 and waits == sorted(waits)
