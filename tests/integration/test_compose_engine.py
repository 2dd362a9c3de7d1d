"""Compose and its engine as they are, where they run: what our commands make of real containers.

Skipped where no engine answers. Its image holds ``sleep`` and no more, so none is fetched.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncline.scaling.compose import Compose
from syncline_proto.errors import ProcessFailed

SLEEP = "/bin/sleep"
NAME = f"syncline-test-{os.getpid()}"
SERVICE: dict[str, Any] = {
    "image": NAME,
    "command": [SLEEP, "600"],
    "network_mode": "none",
    "stop_grace_period": "0s",
}


def docker(*arguments: str, given: bytes = b"") -> str:
    argv = ["docker", *arguments]
    done = subprocess.run(argv, input=given, capture_output=True, check=True, timeout=60)
    return done.stdout.decode()


def image() -> bytes:
    """``sleep``, and the libraries that it is linked with."""
    linked = subprocess.run(["ldd", SLEEP], capture_output=True, text=True, check=True).stdout
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as tar:
        for path in (SLEEP, *re.findall(r"(/\S+) \(", linked)):
            tar.add(path)
    return packed.getvalue()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """The file of a project with replicas, of which none runs, and something else, which does."""
    try:
        docker("info")
        docker("compose", "version")
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no Docker engine with Compose answers here")
    file = tmp_path / "docker-compose.yml"
    services = {"worker": {**SERVICE, "depends_on": ["other"]}, "other": SERVICE}
    file.write_text(json.dumps({"name": NAME, "services": services}))
    docker("import", "-", NAME, given=image())
    try:
        docker("compose", "--file", str(file), "up", "--detach", "other")
        yield file
    finally:
        docker("compose", "--file", str(file), "down")
        docker("image", "rm", NAME)


def running(service: str) -> set[str]:
    """Ids of the service's containers that run, in full."""
    label = f"label=com.docker.compose.service={service}"
    ours = f"label=com.docker.compose.project={NAME}"
    return set(docker("ps", "--quiet", "--no-trunc", "--filter", label, "--filter", ours).split())


def test_a_real_engine_has_as_many_replicas_as_it_is_told_and_nothing_else_is_touched(
    project: Path,
) -> None:
    workload, beside = Compose(str(project)), running("other")
    assert len(beside) == 1 and workload.look().replicas == 0
    workload.scale(3)
    observed, three = workload.look(), running("worker")
    assert observed.replicas == len(three) == 3
    hosts = docker("inspect", "--format", "{{.Config.Hostname}}", *three).split()
    assert all(map(observed.is_own, hosts)), "a replica has its host's name"
    docker("kill", three.pop())
    assert workload.look().replicas == 2, "who has ended is none"
    workload.scale(1)
    # Who stays is Compose's to say: it may start the one again that has ended, and end the others.
    assert len(running("worker")) == 1 == workload.look().replicas
    assert running("other") == beside
    with pytest.raises(ProcessFailed, match="no such service"):
        Compose(str(project), service="workers").scale(1)
