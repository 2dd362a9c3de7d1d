"""What is asked of Compose, and what is made of its answers.

``docker`` is a stand-in that keeps a project's containers as files: no engine is needed. What
Compose really does with these commands ``integration/test_compose_engine.py`` asks one, if there is
one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from syncline.scaling.compose import Compose
from syncline_proto.errors import ConfigError, FileMissing, ProcessFailed

DOCKER = """#!/bin/sh
echo "$*" >> "$STATE/calls"
if [ -e "$STATE/broken" ]; then echo "noise" >&2; echo "no such service: worker" >&2; exit 14; fi
if [ -e "$STATE/alone" ]; then
  echo "docker: unknown command" >&2; echo "Run 'docker --help' for more information" >&2; exit 1
fi
case "$*" in
  *" ps "*) for id in "$STATE"/containers/*; do [ -e "$id" ] && basename "$id"; done ;;
  *" up "*)
    for word in "$@"; do
      case "$word" in worker=*) wanted="${word#worker=}" ;; esac
    done
    rm -f "$STATE"/containers/*
    for number in $(seq 1 "$wanted"); do touch "$STATE/containers/0123456789ab$number"; done ;;
esac
exit 0
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project's containers, and of what ``docker`` was asked."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "containers").mkdir()
    (tmp_path / "docker-compose.yml").write_text("name: mine")
    docker = tmp_path / "bin" / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STATE", str(tmp_path))
    return tmp_path


def test_only_the_service_of_replicas_is_touched(engine: Path) -> None:
    workload = Compose(str(engine / "docker-compose.yml"), "mine")
    assert workload.look().replicas == 0
    workload.scale(3)
    observed = workload.look()
    assert observed.replicas == 3 and not observed.starts_again
    assert observed.is_own("0123456789ab") and not observed.is_own("worker-0"), (
        "a host's name is an id"
    )
    asked = (engine / "calls").read_text().splitlines()
    (up,) = [line for line in asked if " up " in line]
    file = engine / "docker-compose.yml"
    looks = {line.partition(" ps ")[2] for line in asked if " ps " in line}
    assert looks == {"--quiet --status running --status restarting worker"}, (
        "who has ended is none, and who is started again is one"
    )
    assert up == (
        f"compose --file {file} --project-name mine up --detach --no-recreate --no-deps "
        "--scale worker=3 worker"
    )


def test_what_fails_is_told_in_compose_s_words(engine: Path) -> None:
    workload = Compose(str(engine / "docker-compose.yml"))
    (engine / "broken").touch()
    with pytest.raises(ProcessFailed, match=r"compose up failed: no such service: worker\.$"):
        workload.scale(1)


def test_what_is_missing_is_named(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileMissing, match=r"nowhere\.yml does not exist"):
        Compose(str(engine / "nowhere.yml"))
    workload = Compose(str(engine / "docker-compose.yml"))
    (engine / "alone").touch()
    with pytest.raises(ConfigError, match="install its Compose plugin"):
        workload.look()
    monkeypatch.setenv("PATH", str(engine))
    with pytest.raises(ConfigError, match="docker is not here"):
        Compose(str(engine / "docker-compose.yml"))


def test_a_command_that_cannot_be_run_or_read_is_one_that_failed(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the scaler asks again, as after any other failure."""
    workload, docker = Compose(str(engine / "docker-compose.yml")), engine / "bin" / "docker"
    docker.write_text("#!/bin/sh\nprintf '\\377 is no text' >&2; exit 1\n")
    with pytest.raises(ProcessFailed, match="ps failed: .* is no text"):
        workload.look()
    docker.write_bytes(b"\0")
    monkeypatch.setenv("PATH", str(docker.parent))
    with pytest.raises(ProcessFailed, match="cannot be run"):
        workload.look()
