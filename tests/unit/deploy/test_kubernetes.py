"""The manifests are valid, fit one another, and fit the programs."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from syncline_proto.owners import ordinal
from syncline_sync.settings import OF_HOST
from syncline_testing.deploy import (
    DASHBOARDS,
    K8S,
    ROOT,
    RULES,
    Document,
    containers,
    exposed,
    image_env,
    kustomizations,
    load,
    manifests,
    pod_spec,
    workloads,
)

VERSIONS = ("1.29", "1.37")
"""The oldest and newest schemas that every document must meet."""

WHOLE = [
    (path, document)
    for path, document in manifests()
    # Patches are no whole documents; custom resources have no schema here.
    if "overlays" not in path.parts and "coreos" not in document["apiVersion"]
]
OVERLAYS = sorted(path.parent for path in K8S.rglob("kustomization.yaml"))
WORKLOADS = workloads()
PODS = {name: pod_spec(document) for name, document in WORKLOADS.items()}


def label(pair: tuple[Path, Document]) -> str:
    path, document = pair
    return f"{path.relative_to(K8S)}:{document['kind']}:{document['metadata']['name']}"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("pair", WHOLE, ids=label)
def test_a_document_meets_the_schema(pair: tuple[Path, Document], version: str) -> None:
    kubernetes_validate.validate(pair[1], version, strict=True)


@pytest.mark.parametrize("path", kustomizations(), ids=lambda p: str(p.parent.name))
def test_a_kustomization_names_what_is_there(path: Path) -> None:
    content = load(path)
    names: list[str] = list(content.get("resources", []))
    names += [patch["path"] for patch in content.get("patches", [])]
    for generator in content.get("configMapGenerator", []):
        names += generator["files"]
    assert names
    assert [name for name in names if not (path.parent / name).exists()] == []


def test_every_manifest_is_used_or_an_example() -> None:
    used = {
        (path.parent / name).resolve()
        for path in kustomizations()
        for name in [
            *load(path).get("resources", []),
            *(patch["path"] for patch in load(path).get("patches", [])),
        ]
    }
    unused = {path.name for path, _ in manifests() if path.resolve() not in used}
    assert unused == {"secret.example.yaml"}


def rendered(overlay: Path) -> list[Document]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not here; it renders kustomizations")
    done = subprocess.run([kubectl, "kustomize", str(overlay)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda p: str(p.relative_to(K8S)))
def test_a_rendered_overlay_is_valid_and_whole(overlay: Path) -> None:
    documents = rendered(overlay)
    built_in = [doc for doc in documents if "coreos" not in doc["apiVersion"]]
    for document in built_in:
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
    there = {(doc["kind"], doc["metadata"]["name"]) for doc in documents}
    for document in built_in:
        for volume in pod_spec(document).get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in there
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert ("PersistentVolumeClaim", claim) in there


def test_the_gpu_overlay_keeps_what_it_does_not_change() -> None:
    workers = [doc for doc in rendered(K8S / "overlays" / "gpu") if pod_spec(doc)]
    (spec,) = [pod_spec(doc) for doc in workers if doc["metadata"]["name"] == "worker"]
    (worker,) = spec["containers"]
    assert "worker-cuda" in worker["image"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"
    mounts = {mount["mountPath"] for mount in worker["volumeMounts"]}
    assert {"/dev/shm", "/checkpoints", "/jobs", "/data", "/tmp"} == mounts


def test_with_postgres_no_control_plane_keeps_anything() -> None:
    documents = rendered(K8S / "overlays" / "postgres")
    (control,) = [
        doc for doc in documents if pod_spec(doc) and doc["metadata"]["name"] == "control"
    ]
    assert control["spec"]["replicas"] == 2
    assert control["spec"]["strategy"]["type"] == "RollingUpdate"
    spec = pod_spec(control)
    (container,) = spec["containers"]
    variables = {one["name"] for one in container["env"]}
    assert variables == {"SYNCLINE_CONTROL_TOKEN", "SYNCLINE_CONTROL_DATABASE"}
    assert [volume["name"] for volume in spec["volumes"]] == ["tmp"]
    assert [mount["name"] for mount in container["volumeMounts"]] == ["tmp"]
    assert ("PersistentVolumeClaim", "control") not in {
        (doc["kind"], doc["metadata"]["name"]) for doc in documents
    }


def test_a_job_of_one_s_own_goes_in_as_the_documentation_says(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "deployment.md").read_text()
    lines = re.search(r"`kustomization.yaml`, which gains:\n\n((?: {4}.*\n)+)", text)
    assert lines is not None
    for folder in ("k8s", "docker"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    mine = shutil.copytree(K8S / "overlays" / "example", tmp_path / "k8s" / "overlays" / "mine")
    with (mine / "kustomization.yaml").open("a") as file:
        file.write(textwrap.dedent(lines[1]))
    (mine / "books.toml").write_text("# a job")
    documents = rendered(mine)
    (worker,) = [doc for doc in documents if doc["metadata"]["name"] == "worker" and pod_spec(doc)]
    assert pod_spec(worker)["containers"][0]["args"][:2] == ["train", "/jobs/books.toml"]
    (volume,) = [v["configMap"] for v in pod_spec(worker)["volumes"] if "configMap" in v]
    (jobs,) = [doc for doc in documents if doc["metadata"]["name"] == volume["name"]]
    assert jobs["data"].keys() == {"demo.toml", "books.toml"}


@pytest.mark.parametrize("name", sorted(PODS))
def test_pods_have_no_rights_and_no_injected_settings(name: str) -> None:
    spec = PODS[name]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is (name == "scaler"), "see its rights below"
    # A Service named syncline-control would set SYNCLINE_CONTROL_PORT, a setting of ours.
    assert spec["enableServiceLinks"] is False
    for container in containers(spec):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= container["resources"].keys()


@pytest.mark.parametrize("name", sorted(PODS))
def test_what_a_container_mounts_is_a_volume_of_its_pod(name: str) -> None:
    volumes = {volume["name"] for volume in PODS[name]["volumes"]}
    claims = WORKLOADS[name]["spec"].get("volumeClaimTemplates", [])
    volumes |= {claim["metadata"]["name"] for claim in claims}
    mounted = {m["name"] for c in containers(PODS[name]) for m in c["volumeMounts"]}
    assert mounted == volumes


def test_the_sync_service_keeps_its_store_on_a_volume_that_outlives_its_pod() -> None:
    assert WORKLOADS["sync"]["kind"] == "StatefulSet"
    (claim,) = WORKLOADS["sync"]["spec"]["volumeClaimTemplates"]
    (container,) = PODS["sync"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == image_env("sync")["SYNCLINE_SYNC_DATA"]
    named = {volume["name"] for volume in PODS["sync"]["volumes"]}
    assert claim["metadata"]["name"] not in named, "an emptyDir of that name would hide it"


def ports(name: str) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for container in PODS[name]["containers"]
        for port in container.get("ports", [])
    }


@pytest.mark.parametrize("program", ["control", "sync"])
def test_pods_open_the_ports_that_the_program_listens_on(program: str) -> None:
    assert set(ports(program).values()) == exposed(program)


def test_services_and_policies_reach_ports_that_exist() -> None:
    for _, document in manifests():
        if document["kind"] == "Service":
            target = ports(document["spec"]["selector"]["app.kubernetes.io/name"])
            for port in document["spec"].get("ports", []):
                assert port["port"] == target[port["targetPort"]]
        if document["kind"] == "NetworkPolicy":
            target = ports(document["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"])
            for rule in document["spec"]["ingress"]:
                assert {port["port"] for port in rule["ports"]} <= target.keys()


def probes(name: str) -> Iterator[Any]:
    for container in PODS[name]["containers"]:
        yield from (what for key, what in container.items() if key.endswith("Probe"))


def test_probes_ask_where_health_is_answered() -> None:
    from syncline_control.routes.health import router

    paths = {getattr(route, "path", "") for route in router.routes}
    asked = {(probe["httpGet"]["path"], probe["httpGet"]["port"]) for probe in probes("control")}
    assert asked == {("/healthz", "http"), ("/readyz", "http")}
    assert {path for path, _ in asked} <= paths
    assert {probe["grpc"]["port"] for probe in probes("sync")} == {ports("sync")["health"]}
    assert list(probes("worker")) == []


def test_the_token_is_a_secret_of_one_name() -> None:
    (secret,) = [doc for _, doc in manifests() if doc["kind"] == "Secret"]
    assert list(secret["stringData"].values()) == [""]
    named = {
        (entry["valueFrom"]["secretKeyRef"]["name"], entry["valueFrom"]["secretKeyRef"]["key"])
        for spec in PODS.values()
        for container in containers(spec)
        for entry in container.get("env", [])
        if "secretKeyRef" in entry.get("valueFrom", {})
    }
    assert named == {(secret["metadata"]["name"], *secret["stringData"])}


def test_service_monitors_scrape_ports_and_jobs_that_alerts_know() -> None:
    monitors = [doc for _, doc in manifests() if doc["kind"] == "ServiceMonitor"]
    services = {doc["metadata"]["name"]: doc for _, doc in manifests() if doc["kind"] == "Service"}
    for monitor in monitors:
        (name,) = monitor["spec"]["selector"]["matchLabels"].values()
        labels = services[name]["metadata"]["labels"]
        assert labels[monitor["spec"]["jobLabel"]] == name
        open_ports = {port["name"] for port in services[name]["spec"]["ports"]}
        assert {end["port"] for end in monitor["spec"]["endpoints"]} <= open_ports
        # A replica that is away is one whose lease is lost.
        assert name == "worker" or f'up{{job="{name}"}}' in RULES.read_text()
    assert len(monitors) == 3


def test_the_scaler_may_scale_the_workers_and_nothing_else() -> None:
    found = {doc["kind"]: doc for path, doc in manifests() if path.name == "rights.yaml"}
    assert set(found) == {"ServiceAccount", "Role", "RoleBinding"}
    (rule,) = found["Role"]["rules"]
    assert rule == {
        "apiGroups": ["apps"],
        "resources": ["statefulsets/scale"],
        "resourceNames": ["worker"],
        "verbs": ["get", "patch"],
    }
    assert WORKLOADS["worker"]["kind"] == "StatefulSet"
    account = PODS["scaler"]["serviceAccountName"]
    assert found["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]


def test_the_scaler_s_arguments_name_what_is_there() -> None:
    (container,) = PODS["scaler"]["containers"]
    command, run, option, workload, *_ = container["args"]
    assert (command, option) == ("scaler", "--kubernetes")
    assert run == tomllib.loads((ROOT / "docker/jobs/demo.toml").read_text())["run"]["name"]
    namespace, kind, name = workload.split("/")
    assert kind == WORKLOADS[name]["kind"].lower()
    assert namespace == load(K8S / "base" / "kustomization.yaml")["namespace"]


def test_compose_and_kubernetes_show_the_same_dashboards() -> None:
    grafana = load(DASHBOARDS.parent / "kustomization.yaml")
    (generator,) = [
        one for one in grafana["configMapGenerator"] if one["name"] == "grafana-dashboards"
    ]
    named = {Path(file).name for file in generator["files"]}
    assert named == {path.name for path in DASHBOARDS.glob("*.json")}


def test_sync_pods_know_how_many_they_are_and_which_of_them_each_is() -> None:
    workload = WORKLOADS["sync"]
    (container,) = PODS["sync"]["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert int(env["SYNCLINE_SYNC_SHARDS"]) == workload["spec"]["replicas"]
    assert env["SYNCLINE_SYNC_INDEX"] == OF_HOST
    patched = re.search(r"containers/0/env/(\d+)/value", (ROOT / "docs/deployment.md").read_text())
    assert patched and container["env"][int(patched[1])]["name"] == "SYNCLINE_SYNC_SHARDS"
    for index in range(3):
        assert ordinal(f"{workload['metadata']['name']}-{index}") == index
    # A pod that waits for the one before it would wait for ever where that is the broken one.
    assert workload["spec"]["podManagementPolicy"] == "Parallel"
