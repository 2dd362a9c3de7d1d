"""The processes of what benchmarks compare: what is started, where, with what.

Every system gets the same: one host for each participant, one more for what serves them, the same
threads; of several sync services each has a host of its own. Builds command lines, and starts
nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from network import Links, Loopback
from peers import gate
from syncline.launch.ports import free_ports
from syncline.launch.processes import Command

HERE = str(Path(__file__).parent)
STAGE_SERVICE, STAGE_PARTICIPANT = 0, 1
GRACE_S = 3.0
TOKEN = "of-this-benchmark"
"""Services that others than loopback reach want one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What all systems have in common."""

    network: Loopback | Links
    participants: int
    parameters: int
    folder: Path
    gate: Path
    pythons: dict[str, Path] = field(default_factory=dict[str, Path])
    """Of the peers that have an environment of their own."""

    @property
    def server(self) -> int:
        """The host of those who serve."""
        return self.participants

    def at(self, host: int, port: int) -> str:
        return f"{self.network.address(host)}:{port}"

    def participant(
        self,
        system: str,
        number: int,
        argv: Sequence[str],
        place: dict[str, str],
        **env: str,
    ) -> Command:
        """One participant's process, on its host; ``place`` is for its script."""
        hosts = {f"host_{one}": self.network.address(one) for one in range(self.participants)}
        mine = {
            gate.GATE: str(self.gate),
            gate.SYSTEM: system,
            gate.PARTICIPANT: str(number),
            gate.PARTICIPANTS: str(self.participants),
            gate.PARAMETERS: str(self.parameters),
            gate.PLACE: json.dumps({**hosts, **place}),
            "GLOO_SOCKET_IFNAME": self.network.interface(number),
        }
        return self._command(f"{system}-{number}", number, STAGE_PARTICIPANT, argv, mine | env)

    def service(self, name: str, argv: Sequence[str], **env: str) -> Command:
        """A process on the host of those who serve."""
        return self.service_at(self.server, name, argv, **env)

    def service_at(self, host: int, name: str, argv: Sequence[str], **env: str) -> Command:
        """A process that serves, on any host."""
        return self._command(name, host, STAGE_SERVICE, argv, env)

    def _command(
        self, name: str, host: int, stage: int, argv: Sequence[str], env: dict[str, str]
    ) -> Command:
        return Command(
            name=name,
            argv=[*self.network.on(host), *argv],
            folder=self.folder / "logs",
            stage=stage,
            grace_s=GRACE_S,
            env={"OMP_NUM_THREADS": "1", "PYTHONPATH": HERE, **env},
        )


def syncline_services(scene: Scene, control: int, shards: int) -> list[Command]:
    """The control plane, on the port given, and the sync services that share each run."""
    module = [sys.executable, "-m"]
    control_argv = [*module, "syncline_control", "--host", "0.0.0.0", "--port", str(control)]
    database = str(scene.folder / "control.db")
    ours = {"PYTHONPATH": _our_path()}
    commands = [
        scene.service(
            "control",
            [*control_argv, "--database", database],
            SYNCLINE_CONTROL_TOKEN=TOKEN,
            **ours,
        )
    ]
    for index in range(shards):
        host = scene.server + index
        sync, health, metrics = free_ports(3)
        argv = [
            *(*module, "syncline_sync", "--control", f"http://{scene.at(scene.server, control)}"),
            *("--shards", str(shards), "--index", str(index)),
            *("--host", "0.0.0.0", "--port", str(sync), "--health-port", str(health)),
            *("--metrics-port", str(metrics), "--data", str(scene.folder / f"store-{index}")),
            *("--advertise", scene.at(host, sync)),
        ]
        env = {"SYNCLINE_SYNC_TOKEN": TOKEN, **ours}
        commands.append(scene.service_at(host, f"sync-{index}", argv, **env))
    return commands


def syncline_replicas(
    scene: Scene, system: str, control: int, settings: dict[str, Any]
) -> list[Command]:
    """The replicas of one run, which is called as the system is."""
    place = {
        "control": scene.at(scene.server, control),
        "run": system,
        "settings": json.dumps(settings),
    }
    return replicas_of(scene, system, "peers.syncline_replica", place)


def paced_replicas(scene: Scene, name: str, place: dict[str, str]) -> list[Command]:
    """Replicas that train at a pace: those of ``exposed.py``."""
    return replicas_of(scene, name, "peers.paced_replica", place)


def api_of(control: str) -> httpx.Client:
    """Calls to the control plane; a context manager."""
    return httpx.Client(
        base_url=f"http://{control}/v1",
        headers={"Authorization": f"Bearer {TOKEN}"},
        trust_env=False,
    )


def replicas_of(scene: Scene, name: str, module: str, place: dict[str, str]) -> list[Command]:
    env = {"PYTHONPATH": _our_path(), "SYNCLINE_TOKEN": TOKEN}
    return [
        scene.participant(name, number, [sys.executable, "-m", module], place, **env)
        for number in range(scene.participants)
    ]


def gloo(scene: Scene) -> list[Command]:
    """gloo's all-reduce, by the torch that Syncline uses."""
    place = {"store": scene.at(0, free_ports(1)[0])}
    argv = [sys.executable, "-m", "peers.gloo"]
    return [scene.participant("gloo", one, argv, place) for one in range(scene.participants)]


def torchft(scene: Scene) -> list[Command]:
    """A lighthouse, and a replica group of one rank for each participant."""
    python = scene.pythons["torchft"]
    (port,) = free_ports(1)
    lighthouse = [
        *(str(python.with_name("torchft_lighthouse")), "--bind", f"0.0.0.0:{port}"),
        *("--min_replicas", str(scene.participants), "--quorum_tick_ms", "10"),
    ]
    place = {"lighthouse": scene.at(scene.server, port)}
    argv = [str(python), "-m", "peers.torchft_diloco"]
    quiet = {"RUST_LOG": "error"}
    return [
        scene.service("lighthouse", lighthouse, **quiet),
        *(
            scene.participant("torchft", one, argv, place, **quiet)
            for one in range(scene.participants)
        ),
    ]


def hivemind(scene: Scene) -> list[Command]:
    """Nobody serves: the participants find one another in their DHT."""
    place = {"told": str(scene.folder / "hivemind.txt")}
    argv = [str(scene.pythons["hivemind"]), "-m", "peers.hivemind_average"]
    # By its default it names memory in /dev/shm, where that stays behind whoever is killed.
    env = {"HIVEMIND_MEMORY_SHARING_STRATEGY": "file_descriptor"}
    return [
        scene.participant("hivemind", one, argv, place, **env) for one in range(scene.participants)
    ]


def flower(scene: Scene) -> list[Command]:
    """A SuperLink, a SuperNode for each participant, and who submits the app."""
    python = scene.pythons["flower"]
    port, *ports = free_ports(1 + scene.participants)
    superlink = scene.at(scene.server, port)
    env = {
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(scene.folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    }
    link = [
        *(str(python.with_name("flower-superlink")), "--insecure", "--host", "0.0.0.0"),
        *("--port", str(port), "--disable-runtime-dependency-installation"),
    ]
    node = [str(python.with_name("flower-supernode")), "--insecure", "--superlink", superlink]
    submit = [str(python), "-m", "peers.flower_up"]
    place = {"superlink": superlink}
    nodes = [
        scene.participant("flower", one, [*node, "--port", str(ports[one])], place, **env)
        for one in range(scene.participants)
    ]
    first = scene.participant("flower-up", 0, submit, place, **env)
    return [scene.service("superlink", link, **env), *nodes, first]


PEERS = {"gloo": gloo, "torchft": torchft, "hivemind": hivemind, "flower": flower}


def _our_path() -> str:
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([HERE, given]) if given else HERE
