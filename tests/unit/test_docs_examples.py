"""What the pages show is true: blocks run, commands and flags exist, links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
import torch
import typer
from pydantic_settings import BaseSettings
from transformers import LlamaConfig, LlamaForCausalLM
from typer.core import TyperGroup

from round import options as benchmark_options
from syncline import Replica
from syncline.cli.commands import app
from syncline.settings import Environment
from syncline.train.config import JobConfig
from syncline_control.command import app as control
from syncline_control.settings import ControlSettings
from syncline_sync.command import run as serve
from syncline_sync.settings import SyncSettings
from syncline_testing.deploy import COMPOSE, load, stages
from syncline_testing.pages import (
    PAGES,
    ROOT,
    anchors,
    command_lines,
    fenced,
    links,
    spans,
    text_of,
)
from syncline_testing.training import LLAMA

README = ROOT / "README.md"
COMING = ROOT / "docs" / "coming-from.md"
PROGRAMS: dict[str, Any] = {
    "syncline": typer.main.get_command(app),
    "syncline-control": typer.main.get_command(control),
}
_sync = typer.Typer()
_sync.command()(serve)
PROGRAMS["syncline-sync"] = typer.main.get_command(_sync)
SETTINGS: tuple[type[BaseSettings], ...] = (Environment, ControlSettings, SyncSettings)
OUR_FOLDERS = "benchmarks|docker|docs|k8s|proto|services|tests|worker"
LINES = [(page, words) for page in PAGES for words in command_lines(page)]


def found_in(words: list[str], *, whole: bool) -> Any:
    """The command that these words name, which must understand them.

    Words in a sentence, not ``whole``, may leave arguments out.
    """
    command, rest = PROGRAMS[words[0]], words[1:]
    while isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
        command = command.commands[rest.pop(0)]
    if whole:
        try:
            command.make_context(words[0], list(rest))
        except typer.Exit as end:  # of --help
            assert end.exit_code == 0
    else:
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word for word in rest if word.startswith("-")} <= known
    return command


def flags(command: Any) -> set[str]:
    """Every flag of a command and of those below it."""
    below = command.commands.values() if isinstance(command, TyperGroup) else ()
    own = {option for parameter in command.params for option in parameter.opts}
    return own.union(*(flags(one) for one in below))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_compile_and_toml_blocks_are_jobs(page: Path) -> None:
    for block in fenced(page, "python"):
        compile(block, page.name, "exec")
    for block in fenced(page, "toml"):
        JobConfig.checked(tomllib.loads(block), page.name)


def test_the_readme_shows_both_ways() -> None:
    """Or the tests of its blocks would pass without any."""
    assert [len(fenced(README, language)) for language in ("python", "toml")] == [1, 1]


@pytest.fixture
def one_thread() -> Generator[None]:
    """For sums this small, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trains(page: Path, block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block, alone, given the names that its page leaves to the reader."""
    monkeypatch.delenv("SYNCLINE_CONTROL", raising=False)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": 16}))
    tokens = torch.arange(16).repeat(2, 1)
    batch = {"input_ids": tokens, "labels": tokens}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    names: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": [batch] * 20}
    before = model(**batch).loss.item()
    with structlog.testing.capture_logs():
        exec(compile(block, page.name, "exec"), names)
    assert model(**batch).loss.item() < before / 2
    settings, given = names["replica"].settings, names["settings"]
    assert settings.token_budget == given["token_budget"]


@pytest.mark.usefixtures("one_thread")
def test_the_loop_of_the_readme_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    trains(README, fenced(README, "python")[0], monkeypatch)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["ddp", "torchft", "opendiloco", "hivemind", "flower"])
def test_our_loop_beside_that_of_others_trains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stands on the page after one of theirs, which is only compiled."""
    (block,) = (one for one in fenced(COMING, "python") if f'run="from-{name}"' in one)
    trains(COMING, block, monkeypatch)


def test_arguments_of_a_replica_in_sentences_exist() -> None:
    named = {
        keyword.arg
        for span in spans(README)
        if span.startswith("Replica(")
        for keyword in cast(ast.Call, ast.parse(span, mode="eval").body).keywords
    }
    assert named >= {"name", "control", "tokens_of"}
    assert named <= set(inspect.signature(Replica).parameters)
    assert "replica.count_tokens(n)" in spans(README)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def shown(program: str) -> list[list[str]]:
    return [words for _, words in LINES if words[0] == program]


@pytest.mark.parametrize("program", PROGRAMS)
def test_command_lines_of_ours_are_understood(program: str) -> None:
    assert shown(program)
    for words in shown(program):
        found_in(words, whole=True)


def test_commands_in_sentences_exist() -> None:
    named = [span.split() for page in PAGES for span in spans(page)]
    ours = [words for words in named if words[0] in PROGRAMS]
    assert len(ours) > 20
    for words in ours:
        found_in(words, whole=False)


def test_flags_in_sentences_exist() -> None:
    known = set[str]().union(*(flags(command) for command in PROGRAMS.values()))
    known |= set(re.findall(r"--[\w-]+", benchmark_options().format_help()))
    foreign = {"--scale"}  # of docker compose
    for page in PAGES:
        told = {span.split()[0].partition("=")[0] for span in spans(page) if span.startswith("--")}
        assert told - known - foreign == set(), page.name


def test_make_has_the_targets_that_are_named() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert shown("make")
    for words in shown("make"):
        assert set(words[1:]) <= targets


def test_what_python_is_to_run_is_there() -> None:
    texts = [" ".join(words) for _, words in LINES] + [s for page in PAGES for s in spans(page)]
    modules = {name for text in texts for name in re.findall(r"python -m ([\w.]+)", text)}
    scripts = {name for text in texts for name in re.findall(r"python ([\w/]+/\w+\.py)", text)}
    assert modules and scripts
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
    assert [name for name in scripts if not (ROOT / name).is_file()] == []


def test_stubs_of_ones_own_stand_beside_the_installed_package(tmp_path: Path) -> None:
    (tmp_path / "proto").symlink_to(ROOT / "proto")
    (protoc,) = (words for words in shown("python") if "grpc_tools.protoc" in words)
    told = "import syncline; from mine import sync_pb2_grpc, checkpoints_pb2_grpc"
    for command in (protoc[1:], ["-c", told]):
        subprocess.run([sys.executable, *command], cwd=tmp_path, check=True, timeout=60)


def test_paths_that_are_named_exist() -> None:
    for page in PAGES:
        for span in spans(page):
            if re.fullmatch(rf"(?:{OUR_FOLDERS})/[\w./-]+", span):
                assert (ROOT / span).exists(), f"{page.name}: {span}"


def test_docker_and_kubectl_are_given_what_exists() -> None:
    services = set(load(COMPOSE)["services"])
    assert shown("docker") and shown("kubectl")
    copied = {Path(words[-1]): ROOT / words[-2] for words in shown("cp")}
    assert [source for source in copied.values() if not source.exists()] == []
    for words in shown("docker") + shown("kubectl"):
        for flag, value in zip(words, words[1:], strict=False):
            if flag in ("-f", "-k"):
                assert Path(value) in copied or (ROOT / value).exists(), value
            elif flag == "--target":
                assert value in stages()
            elif flag == "--scale":
                assert value.partition("=")[0] in services
            elif flag in ("stop", "run") and not value.startswith("-"):
                assert value in services
        if words[-1].startswith("syncline "):  # what a container's shell is given
            assert words[-2] in services
            found_in(words[-1].split(), whole=True)


def test_variables_that_are_named_are_read_by_somebody() -> None:
    read = {
        f"{kind.model_config.get('env_prefix', '')}{name}".upper()
        for kind in SETTINGS
        for name in kind.model_fields
    }
    read |= set(re.findall(r"\$\{(\w+)", COMPOSE.read_text()))
    read |= set(re.findall(r"\$\{(\w+)", (ROOT / "docker" / "compose.gpu.yml").read_text()))
    read |= {"SYNCLINE_DEBUG", "SYNCLINE_NO_SKIPS"}  # syncline.faults; tests/conftest.py
    read |= {"SYNCLINE_TEST_DEVICE", "SYNCLINE_TEST_ANCHORS"}  # syncline_testing.replicas
    for page in PAGES:
        told = set(re.findall(r"\bSYNCLINE_[A-Z_]*[A-Z]\b(?!_)", text_of(page)))
        assert told - read == set(), page.name
