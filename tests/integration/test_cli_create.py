"""Runs are created from a job's file or from settings; a job's model is looked at before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline_testing.cluster import Cluster
from syncline_testing.shell import Shell

JOB = """
[run]
name = "from-file"
token_budget = 10_000
[model]
config = { model_type = "llama" }
[data]
source = ["builtin"]
"""


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A control plane for all tests here; each gives its runs names of their own."""
    cluster = Cluster(tmp_path_factory.mktemp("control"))
    try:
        cluster.control.start()
        yield cluster.control_url
    finally:
        cluster.stop()


@pytest.fixture
def shell(
    control: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.setenv("SYNCLINE_CONTROL", control)
    return Shell(capsys)


def test_a_run_is_created_from_a_jobs_file(shell: Shell, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    made = shell.json(f"runs create {job} --set run.sync_every=7")
    assert (made["name"], made["settings"]["sync_every"]) == ("from-file", 7)
    assert made["job"]["data"]["source"] == ["builtin"]
    assert shell.json(f"runs create {job} --name other")["name"] == "other"
    again = f"runs create {job} --set run.sync_every=7"
    looks = "Checking the model ...\n"
    assert shell(again) == (0, "The run from-file exists already, with these settings.\n", looks)
    assert shell(f"runs create {job} --name third") == (0, "The run third is created.\n", looks)
    assert shell.json(again) == made
    code, _, said = shell(f"runs create {job} --set run.sync_every=8")
    assert code == 16 and "sync_every" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('config={model_type="nonesuch"}', "no causal language model 'nonesuch'"),
        ("config.hidden_sizes=64", "model.config.hidden_sizes is not a setting of llama"),
        ("config.num_key_value_heads=7", "is not a multiple of num_key_value_heads (7)"),
    ],
)
def test_no_run_is_created_whose_model_cannot_be_built(
    shell: Shell, tmp_path: Path, change: str, said: str
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    code, out, told = shell(f"runs create {job} --name unbuilt --set model.{change}")
    assert (code, out) == (10, "") and said in told
    assert "unbuilt" not in {one["name"] for one in shell.json("runs ls")}


def test_what_is_on_other_machines_is_not_checked_and_said_so(shell: Shell, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB.replace('source = ["builtin"]', 'path = "/data/elsewhere"'))
    code, _, told = shell(f"runs create {job} --name data-elsewhere")
    assert code == 0 and "Whether the model fits its tokenizer is not checked here" in told
    job.write_text(JOB.replace('config = { model_type = "llama" }', 'path = "/models/elsewhere"'))
    code, _, told = shell(f"runs create {job} --name model-elsewhere")
    assert code == 0 and "The model is not checked here" in told


def test_a_run_may_be_created_from_settings_alone(shell: Shell) -> None:
    made = shell.json("runs create --name plain --set sync_every=32 --set run.codec.up=int8")
    assert (made["name"], made["job"]) == ("plain", {})
    assert (made["settings"]["sync_every"], made["settings"]["codec"]["up"]) == (32, "int8")
    again = "runs create --name plain --set codec.up=int8 --set sync_every=32"
    assert "exists already, with these settings" in shell(again)[1]
    assert shell.json("runs create --name bare")["settings"]["sync_every"] == 64
    for words, code, why in (
        ("", 10, "give a job's file, or --name"),
        ("--name plain", 16, "sync_every"),
        ("--name My-Run", 10, "'My-Run' must be"),
        ("--name unmade --set sync_evry=3", 10, "--set: sync_evry is not a setting"),
        ("--name unmade --set outer.lr=-1", 10, "--set: outer.lr"),
        ("--name unmade --set sync_every", 10, "--set sync_every: write it as"),
        ("--name unmade --set optimizer.lr=1", 10, "--set optimizer.lr=1: optimizer is a job's;"),
        ("unmade", 12, "or create a run without a job by --name unmade."),
        ("unmade/job.toml", 12, "give the path of a TOML file."),
    ):
        ended, said = shell.refused(f"runs create {words}")
        assert (ended, why in said) == (code, True), said
    assert "unmade" not in [one["name"] for one in shell.json("runs ls")]
