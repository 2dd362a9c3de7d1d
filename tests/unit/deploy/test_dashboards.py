"""Dashboards and alerts ask for metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from syncline.metrics import Figures
from syncline_control.metrics import Metrics as ControlMetrics
from syncline_control.metrics import Snapshot
from syncline_sync.metrics import Metrics as SyncMetrics
from syncline_sync.settings import SyncSettings
from syncline_testing.deploy import COMPOSE, DASHBOARDS, ROOT, RULES, expressions, load
from syncline_testing.replicas import Trial

PROVISIONING = ROOT / "docker" / "grafana" / "provisioning"
PROMETHEUS = ROOT / "docker" / "prometheus"
SCRAPED = {"job", "instance", "le"}
"""Labels that Prometheus adds, or that every histogram has."""
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
FOREIGN = {"up"}


@cache
def exported() -> frozenset[str]:
    """The names of every series that the two services export, and a replica."""
    told = CollectorRegistry()
    replica = Trial(None, "any", 0).replica
    with replica:
        replica.report(loss=1.0, grad_norm=1.0, lr=1.0, mfu=1.0)
        told.register(Figures(replica))
        texts = [generate_latest(told)]
    texts += [generate_latest(SyncMetrics().registry), ControlMetrics().text(Snapshot(), {})]
    names: set[str] = set()
    for text in texts:
        for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text.decode(), flags=re.MULTILINE):
            names.update(name + suffix for suffix in SUFFIXES.get(kind, ("",)))
    return frozenset(names)


def named(expression: str) -> set[str]:
    """The metrics that an expression asks for."""
    return set(re.findall(r"\b(?:syncline_\w+|up)\b", re.sub(r'"[^"]*"', '""', expression)))


def labels(expression: str) -> set[str]:
    """The labels that it selects or groups by."""
    found = {key for body in re.findall(r"\{(.*?)\}", expression) for key in matchers(body)}
    for group in re.findall(r"\b(?:by|on) \((.*?)\)", expression):
        found |= {key.strip() for key in group.split(",")}
    return found


def matchers(body: str) -> list[str]:
    return re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", body)


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_an_expression_asks_for_what_is_exported(where: str, expression: str) -> None:
    assert named(expression), where
    assert named(expression) - FOREIGN <= exported()


def test_labels_are_ones_that_the_metrics_have() -> None:
    sources = [*(ROOT / "services").glob("*/metrics.py"), ROOT / "worker/syncline/metrics.py"]
    declared = (
        {word for path in sources for word in re.findall(r'"(\w+)"', path.read_text())}
        | SCRAPED
        | {"version"}
    )
    for where, expression in expressions():
        assert labels(expression) <= declared, where


@pytest.mark.parametrize("path", sorted(DASHBOARDS.glob("*.json")), ids=lambda p: p.name)
def test_a_dashboard_is_whole(path: Path) -> None:
    board = json.loads(path.read_text())
    panels = board["panels"]
    sources = load(PROVISIONING / "datasources" / "prometheus.yaml")["datasources"]
    uids = {target["datasource"]["uid"] for p in panels for target in p.get("targets", [])}
    uids |= {variable["datasource"]["uid"] for variable in board["templating"]["list"]}
    assert uids == {source["uid"] for source in sources}
    assert max(Counter(panel["id"] for panel in panels).values()) == 1
    cells = Counter(
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    )
    assert max(cells.values()) == 1, "panels lie on one another"
    assert {x for x, _ in cells} == set(range(24))
    assert all(panel.get("description") for panel in panels if panel["type"] != "row")


def test_provisioning_points_to_where_compose_mounts_the_dashboards() -> None:
    (provider,) = load(PROVISIONING / "dashboards" / "syncline.yaml")["providers"]
    grafana = load(COMPOSE)["services"]["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    assert mounts["./docker/grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./docker/grafana/provisioning"] == "/etc/grafana/provisioning"
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DASHBOARDS / Path(home).name).is_file()
    assert Path(home).parent == Path(provider["options"]["path"])
    (source,) = load(PROVISIONING / "datasources" / "prometheus.yaml")["datasources"]
    assert source["url"].removeprefix("$") in grafana["environment"]


def test_prometheus_scrapes_services_of_compose() -> None:
    config = load(PROMETHEUS / "prometheus.yml")
    assert config["rule_files"] == [RULES.name]
    targets = {
        target
        for job in config["scrape_configs"]
        for one in job.get("static_configs", [])
        for target in one["targets"]
    }
    found = [one for job in config["scrape_configs"] for one in job.get("dns_sd_configs", [])]
    targets |= {f"{name}:{one['port']}" for one in found for name in one["names"]}
    hosts = {target.split(":")[0] for target in targets} - {"localhost"}
    assert hosts <= load(COMPOSE)["services"].keys()
    assert f"sync:{SyncSettings.model_fields['metrics_port'].default}" in targets


def test_the_staging_alert_knows_the_default_budget() -> None:
    default = SyncSettings.model_fields["staging_bytes"].default
    assert f"> 0.9 * {default}" in RULES.read_text()


def promtool(*arguments: str, cwd: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not here; it comes with Prometheus")
    done = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    promtool("check", "config", "prometheus.yml", cwd=PROMETHEUS)


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    histories = Path(__file__).with_name("rules_test.yml").read_text()
    (tmp_path / "test.yml").write_text(histories.replace("RULES", str(RULES)))
    promtool("test", "rules", "test.yml", cwd=tmp_path)
