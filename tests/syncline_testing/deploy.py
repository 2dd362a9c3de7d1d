"""Reads what deploys Syncline: compose, Kubernetes manifests, images, dashboards. Runs nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "docker" / "Dockerfile"
DASHBOARDS = ROOT / "docker" / "grafana" / "dashboards"
RULES = ROOT / "docker" / "prometheus" / "rules.yml"
K8S = ROOT / "k8s"

Document = dict[str, Any]


def load(path: Path) -> Document:
    """The only document of a YAML file."""
    return yaml.safe_load(path.read_text())


def manifests() -> Iterator[tuple[Path, Document]]:
    """Every Kubernetes document that is written out in k8s/."""
    for path in sorted(K8S.rglob("*.yaml")):
        if path.name != "kustomization.yaml":
            for document in yaml.safe_load_all(path.read_text()):
                yield path, document


def kustomizations() -> list[Path]:
    """Every kustomization, also those that turn compose's files into ConfigMaps."""
    return sorted(p for top in (K8S, ROOT / "docker") for p in top.rglob("kustomization.yaml"))


def pod_spec(document: Document) -> Document:
    """What a workload's pods are; empty for anything else."""
    return document.get("spec", {}).get("template", {}).get("spec", {})


def workloads() -> dict[str, Document]:
    """Every workload that is whole, by name; patches are not."""
    return {
        document["metadata"]["name"]: document
        for path, document in manifests()
        if pod_spec(document) and "overlays" not in path.parts
    }


def containers(spec: Document) -> list[Document]:
    """All containers of a pod, those that run first included."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def stages() -> dict[str, str]:
    """The Dockerfile's stages by name, each with its own text, continued lines joined."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    parts = re.split(r"^FROM (.+) AS (\S+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[2::3], parts[3::3], strict=True))


def image_env(stage: str) -> dict[str, str]:
    """What a stage sets by ENV."""
    found: dict[str, str] = {}
    for line in re.findall(r"^ENV (.+)$", stages()[stage], flags=re.MULTILINE):
        found.update(pair.split("=", 1) for pair in line.split())
    return found


def exposed(stage: str) -> set[int]:
    """The ports that a stage says it listens on."""
    found = re.findall(r"^EXPOSE (.+)$", stages()[stage], flags=re.MULTILINE)
    return {int(port) for line in found for port in line.split()}


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of every panel and every alert."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.name}: {panel['title']}", target["expr"]
    for group in load(RULES)["groups"]:
        for rule in group["rules"]:
            yield f"{RULES.name}: {rule['alert']}", rule["expr"]
