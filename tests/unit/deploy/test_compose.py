"""Compose and the images say only what the programs understand."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import typer
import yaml
from pydantic_settings import BaseSettings
from typer.core import TyperGroup

from syncline.cli.commands import app
from syncline.settings import Environment
from syncline.train.config import JobConfig
from syncline_control.settings import ControlSettings
from syncline_proto.settings import TimeoutSettings
from syncline_sync.settings import SyncSettings
from syncline_testing.deploy import (
    COMPOSE,
    DOCKERFILE,
    ROOT,
    Document,
    exposed,
    image_env,
    load,
    pod_spec,
    stages,
    workloads,
)

SETTINGS: dict[str, type[BaseSettings]] = {
    "control": ControlSettings,
    "sync": SyncSettings,
    "worker": Environment,
    "worker-cuda": Environment,
    "scaler": Environment,
}
PROGRAMS = sorted(SETTINGS)
SERVICES = load(COMPOSE)["services"]
JOB = ROOT / "docker" / "jobs" / "demo.toml"


def unknown(program: str, names: list[str]) -> list[str]:
    """Those of the SYNCLINE_ variables that the program would not read."""
    kind = SETTINGS[program]
    prefix = kind.model_config.get("env_prefix", "")
    known = {f"{prefix}{field}".upper() for field in kind.model_fields}
    return [name for name in names if name.startswith("SYNCLINE_") and name not in known]


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_image_sets_only_what_its_program_reads(program: str) -> None:
    assert unknown(program, list(image_env(program))) == []


@pytest.mark.parametrize("program", ["control", "sync"])
def test_an_image_listens_where_it_says(program: str) -> None:
    fields = {
        name.removeprefix(f"SYNCLINE_{program.upper()}_").lower(): value
        for name, value in image_env(program).items()
        if name.startswith("SYNCLINE_")
    }
    # Whoever listens there wants a token, and replicas to be told where to connect to.
    told = {"advertise": "sync:50051"} if program == "sync" else {}
    given = {"token": "secret"} | told | fields
    settings = SETTINGS[program].model_validate(given)
    ports = {getattr(settings, name) for name in type(settings).model_fields if "port" in name}
    assert ports == exposed(program)


@pytest.mark.parametrize("program", ["control", "sync", "worker"])
def test_compose_and_kubernetes_set_only_what_the_program_reads(program: str) -> None:
    names = list(SERVICES[program]["environment"])
    (container,) = pod_spec(workloads()[program])["containers"]
    names += [entry["name"] for entry in container["env"]]
    assert len(names) > 1
    assert unknown(program, names) == []


def parsed(words: list[str]) -> str:
    """The command that these words run, once all its flags and arguments were understood."""
    command, names, rest = typer.main.get_command(app), list[str](), list(words)
    while isinstance(command, TyperGroup):
        names.append(rest.pop(0))
        command = command.commands[names[-1]]
    command.make_context(names[-1], rest)
    return " ".join(names)


def commands() -> list[list[str]]:
    """Every command line of the worker's image."""
    gpu = load(ROOT / "docker" / "compose.gpu.yml")["services"]["worker"]
    pods = pod_spec(workloads()["worker"])
    shells = [*SERVICES["data"]["command"], *SERVICES["worker"]["command"], *gpu["command"]]
    shells += pods["initContainers"][0]["args"]
    lines = [shell.partition("exec syncline ")[2].split() for shell in shells]
    lines.append(pods["containers"][0]["args"])
    # Compose's ${NAME:-otherwise} as it is without the variable, and a shell's "$NAME".
    return [[re.sub(r"\$\{\w+:-(.*)\}|\"\$\$(\w+)\"", r"\1\2", w) for w in line] for line in lines]


@pytest.mark.parametrize("line", commands(), ids=" ".join)
def test_every_command_line_is_one_of_the_program_s(line: list[str]) -> None:
    assert parsed(line) in {"train", "data prepare"}


def test_the_job_reads_what_was_prepared_and_writes_where_a_volume_is() -> None:
    job = JobConfig.load(JOB)
    mounts = {entry.split(":")[1] for entry in SERVICES["worker"]["volumes"]}
    assert f"--out {job.data.path}" in SERVICES["data"]["command"][0]
    assert f"test -e {job.data.path}/manifest.json" in SERVICES["data"]["command"][0]
    assert job.checkpoint.folder is not None
    assert any(job.checkpoint.folder.is_relative_to(mount) for mount in mounts)


def host_paths(service: Document) -> list[str]:
    """What a service mounts from the checkout."""
    return [v.split(":")[0] for v in service.get("volumes", []) if v.startswith(".")]


def test_what_compose_mounts_is_there() -> None:
    paths = [path for service in SERVICES.values() for path in host_paths(service)]
    assert paths
    assert [path for path in paths if not (ROOT / path).is_dir()] == []
    named = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    assert named == set(load(COMPOSE)["volumes"])


def test_the_example_names_every_variable_of_compose() -> None:
    example = (ROOT / "docker" / "example.env").read_text()
    files = (COMPOSE, ROOT / "docker" / "compose.gpu.yml")
    used = {name for file in files for name in re.findall(r"\$\{(\w+)", file.read_text())}
    assert used == set(re.findall(r"^(?:# )?([A-Z_]+)=", example, flags=re.MULTILINE))


def test_workers_may_be_as_many_as_are_asked_for() -> None:
    """--scale: two containers can share neither a name nor a port of this machine."""
    gpu = load(ROOT / "docker" / "compose.gpu.yml")["services"]["worker"]
    for service in (SERVICES["worker"], gpu):
        assert not {"container_name", "hostname", "ports"} & service.keys()


def test_a_second_sync_service_is_there_for_who_asks_and_found_by_all() -> None:
    first, second = SERVICES["sync"], SERVICES["sync-1"]
    assert "profiles" not in first and second["profiles"] == ["shards"]
    shards = {one["environment"]["SYNCLINE_SYNC_SHARDS"] for one in (first, second)}
    assert shards == {"${SYNCLINE_SYNC_SHARDS:-1}"}, "one, unless somebody says otherwise"
    scraped = yaml.safe_load((ROOT / "docker" / "prometheus" / "prometheus.yml").read_text())
    (job,) = [one for one in scraped["scrape_configs"] if one["job_name"] == "sync"]
    (name,) = job["dns_sd_configs"][0]["names"]
    for index, (service, own) in enumerate(((first, "sync"), (second, "sync-1"))):
        environment = service["environment"]
        assert environment["SYNCLINE_SYNC_INDEX"] == index
        names = {own, *service["networks"]["default"]["aliases"]}
        assert name in names, "Prometheus sees each of them"
        told = environment["SYNCLINE_SYNC_ADVERTISE"].partition(":")[0]
        assert told in names and told != name, "replicas reach this very one"
    assert not set(first["volumes"]) & set(second["volumes"])


def test_nothing_starts_with_a_token_that_everybody_knows() -> None:
    assert set(re.findall(r"\$\{SYNCLINE_TOKEN(.{2})", COMPOSE.read_text())) == {":?"}
    example = (ROOT / "docker" / "example.env").read_text()
    assert re.findall(r"^SYNCLINE_TOKEN=(.*)$", example, flags=re.MULTILINE) == [""]


def test_ports_are_published_on_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if ":-127.0.0.1:" not in port] == []


def test_who_is_told_to_end_has_the_time_for_it() -> None:
    # A drain may wait for its round's deadline and for calls, and a commit for a slow disk.
    least = {"worker": TimeoutSettings(profile="lan").round_deadline_s + 35, "sync": 30}
    for name, seconds in least.items():
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= seconds
        assert pod_spec(workloads()[name])["terminationGracePeriodSeconds"] >= seconds


@pytest.mark.parametrize("program", PROGRAMS)
def test_images_run_without_rights_and_heed_sigterm(program: str) -> None:
    stage = stages()[program]
    assert re.search(r"^USER \d{4,}:\d{4,}$", stage, flags=re.MULTILINE)
    assert "STOPSIGNAL SIGTERM" in stages()["runtime"]
    assert ("HEALTHCHECK" in stage) == (program in ("control", "sync"))


def test_the_services_images_and_the_scaler_s_hold_no_torch() -> None:
    requirements = runpy.run_path(str(ROOT / "docker" / "requirements.py"))["requirements"]
    project = (ROOT / "pyproject.toml").read_text()
    named = set(re.findall(r"requirements\.py (\w+)", DOCKERFILE.read_text()))
    assert named == {"control", "sync", "kubernetes"}
    for extra in named:
        assert not any(line.startswith("torch") for line in requirements(project, [extra]))
    for extra in re.findall(r"^ARG EXTRAS=(\w+)$", DOCKERFILE.read_text(), flags=re.MULTILINE):
        assert any(line.startswith("torch") for line in requirements(project, [extra]))


def test_the_build_context_holds_what_is_copied_and_nothing_else() -> None:
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), flags=re.MULTILINE)
    copied = {path for line in copies for path in line.split()}
    assert copied == allowed
    assert all(Path(ROOT, path).exists() for path in copied)
