"""The pages that promise to be complete are compared with the code they speak of."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

import typer
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel
from typer.core import TyperGroup

from syncline.cli.commands import app
from syncline.metrics import Figures
from syncline.train.config import JobConfig
from syncline_control.metrics import Metrics as ControlMetrics
from syncline_control.operations.fleet import Snapshot
from syncline_sync.metrics import Metrics as SyncMetrics
from syncline_testing.replicas import Trial

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
IMAGES = ("control", "sync", "worker")
KEY = re.compile(r"`([a-z_.]+)`")
BETWEEN_VALUES = re.compile(r", (?![^\[]*\])")
METRIC = re.compile(r"\bsyncline_[a-z_]+")
TYPE = re.compile(r"^# TYPE (\w+) ", re.MULTILINE)
SECTION = re.compile(r"^`\[([a-z.]+)\]`|^## `\[([a-z.]+)\]`")


def settings_of(model: type[BaseModel], at: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a job, dotted, with its default; groups of keys are taken apart."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, BaseModel):
            yield from settings_of(kind, f"{at}{name}.")
        else:
            yield f"{at}{name}", None if field.is_required() else field.default


def told_settings() -> tuple[dict[str, str], set[str]]:
    """What docs/configuration.md tells: rows of tables, key to default; keys in sentences."""
    rows: dict[str, str] = {}
    sentences: set[str] = set()
    section: str | None = None
    for line in (DOCS / "configuration.md").read_text().partition("## Environment")[0].splitlines():
        if found := SECTION.match(line):
            section = f"{found[1] or found[2]}."
            sentences |= {f"{section}{key}" for key in KEY.findall(line)}
        elif line.startswith("The rest:"):
            section = ""
        elif line.startswith(("| strategy |", "| codec |")):
            section = None  # names of presets and codecs, no keys
        elif line.startswith("| `") and section is not None:
            keys, default = line.split("|")[1:3]
            names, values = KEY.findall(keys), BETWEEN_VALUES.split(default.strip())
            values = values if len(values) == len(names) else [default.strip()] * len(names)
            rows |= {f"{section}{key}": said for key, said in zip(names, values, strict=True)}
    return rows, sentences


def test_every_setting_is_told_and_every_told_setting_exists() -> None:
    there = {key for key, _ in settings_of(JobConfig)}
    rows, sentences = told_settings()
    assert there - rows.keys() - sentences == set()
    assert rows.keys() - there == set()


def test_the_defaults_are_those_that_are_told() -> None:
    rows, _ = told_settings()
    for key, default in settings_of(JobConfig):
        said = rows.get(key, "")
        if isinstance(default, bool):
            assert said == str(default).lower(), key
        elif isinstance(default, int | float):
            assert float(said) == default, key
        elif isinstance(default, tuple):
            assert json.loads(said) == list(default), key
        elif isinstance(default, str) and said:
            assert said == f'`"{default}"`', key


def test_the_exit_codes_are_those_of_the_command() -> None:
    # A process of its own: here, errors of other programs may have joined the tree.
    argv = [sys.executable, "-m", "syncline.cli", "exit-codes", "--json"]
    rows = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    page = (DOCS / "operations.md").read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    cells = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines()
             if re.match(r"\| \d", line)]  # fmt: skip
    assert cells == [[str(row["exit"]), row["code"], row["meaning"]] for row in rows]


def commands(group: Any, before: str) -> Iterator[str]:
    """Every command of a group, as one types it."""
    for name, command in group.commands.items():
        words = f"{before} {name}"
        if isinstance(command, TyperGroup):
            yield from commands(command, words)
        else:
            yield words


def section(page: str, head: str) -> str:
    return (DOCS / page).read_text().partition(f"## {head}\n")[2].partition("\n## ")[0]


def test_every_command_is_told() -> None:
    told = set(re.findall(r"`(syncline [a-z -]+)`", section("operations.md", "Commands")))
    assert told == set(commands(typer.main.get_command(app), "syncline"))


def test_every_metric_is_told_and_every_told_one_exists() -> None:
    trial = Trial(None, "any", 0)
    with trial.replica:
        trial.replica.report(loss=1.0, grad_norm=1.0, lr=1.0, tokens_per_second=1.0, mfu=0.5)
        worker = CollectorRegistry()
        worker.register(Figures(trial.replica))
        texts = [generate_latest(worker), generate_latest(SyncMetrics().registry)]
    texts.append(ControlMetrics().text(Snapshot(), {}))
    there = {name for text in texts for name in TYPE.findall(text.decode())}
    told = set(METRIC.findall(section("operations.md", "Metrics worth an alert")))
    assert told - {"syncline_worker_"} == there, "that one is how names of a replica's begin"


def test_every_module_has_its_place_in_the_house() -> None:
    """Of packages that are told file by file; of others their folder has."""
    page = (ROOT / "ARCHITECTURE.md").read_text().partition("## 2. ")[2].partition("\n## ")[0]
    words = set(re.findall(r"[a-z_0-9]+", page))
    for package in ("proto/syncline_proto", "services/syncline_sync", "services/syncline_control",
                    "worker/syncline"):  # fmt: skip
        for path in (ROOT / package).glob("*.py"):
            assert path.name in page or path.stem == "__init__", path
        for path in (ROOT / package / "core").glob("*.py"):
            assert path.stem in words or path.stem == "__init__", path


def test_the_first_page_has_the_sizes_of_images_that_their_own_page_has() -> None:
    table = section("deployment.md", "1. Images")
    own = [re.search(rf"^\| `{name}` \|.*\| (.+) \|$", table, re.M) for name in IMAGES]
    assert all(own)
    sizes = ", ".join(found[1] for found in own if found)
    assert f"control, sync, CPU worker | {sizes} |" in (ROOT / "README.md").read_text()
