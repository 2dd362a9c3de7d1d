"""The command lines of everything that a launch starts. Builds them, and starts nothing.

The services are named as modules of their own programs (``python -m syncline_sync``), never
imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from syncline.launch import ranks as rank_runner
from syncline.launch.ports import LOOPBACK
from syncline.launch.processes import Command
from syncline_proto.addresses import PORT_MAX
from syncline_proto.errors import ConfigError

STAGE_CONTROL, STAGE_SYNC, STAGE_REPLICA, STAGE_TOOL = range(4)

CONTROL_GRACE_S = 5.0
SYNC_GRACE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPorts:
    """One sync service's, on this machine."""

    port: int
    health_port: int
    metrics_port: int

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def health_address(self) -> str:
        return f"{LOOPBACK}:{self.health_port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one launch lives: its folder, and its services' ports on this machine."""

    folder: Path
    control_port: int
    syncs: tuple[SyncPorts, ...]
    """Of the sync services, by index; together they own every fragment."""

    @property
    def control_url(self) -> str:
        return f"http://{LOOPBACK}:{self.control_port}"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"


def control_plane(place: Place) -> Command:
    """The control plane, with its database in the launch's folder."""
    token = os.environ.get("SYNCLINE_TOKEN")
    return Command(
        name="control",
        argv=[
            *_module("syncline_control"),
            *("--host", LOOPBACK, "--port", str(place.control_port)),
            *("--database", str(place.folder / "control.db")),
        ],
        folder=place.logs,
        stage=STAGE_CONTROL,
        grace_s=CONTROL_GRACE_S,
        env={"SYNCLINE_CONTROL_TOKEN": token} if token else {},
    )


def sync_service(place: Place, index: int = 0) -> Command:
    """A sync service, with its store in the launch's folder."""
    token = os.environ.get("SYNCLINE_TOKEN")
    name, shards, ports = f"sync-{index}", len(place.syncs), place.syncs[index]
    store = place.folder / "store"
    return Command(
        name=name if shards > 1 else "sync",
        argv=[
            *_module("syncline_sync"),
            *("--control", place.control_url, "--name", name, "--host", LOOPBACK),
            *("--shards", str(shards), "--index", str(index)),
            *("--port", str(ports.port), "--health-port", str(ports.health_port)),
            *("--metrics-port", str(ports.metrics_port)),
            *("--advertise", ports.address),
            *("--data", str(store / name if shards > 1 else store)),
        ],
        folder=place.logs,
        stage=STAGE_SYNC,
        grace_s=SYNC_GRACE_S,
        env={"SYNCLINE_SYNC_TOKEN": token} if token else {},
    )


def replica(
    place: Place, name: str, argv: Sequence[str], *, grace_s: float, env: Mapping[str, str]
) -> Command:
    """One replica, all its ranks; ``argv`` is from ``trainer``."""
    return Command(
        name=name,
        argv=argv,
        folder=place.logs,
        stage=STAGE_REPLICA,
        grace_s=grace_s,
        env={"SYNCLINE_CONTROL": place.control_url, **env},
    )


def tool(place: Place, name: str, arguments: Sequence[str]) -> Command:
    """One of our own commands, in a process of its own."""
    argv = [*_module("syncline.cli"), *arguments]
    env = {"SYNCLINE_CONTROL": place.control_url}
    return Command(name=name, argv=argv, folder=place.logs, stage=STAGE_TOOL, env=env)


def trainer(
    job: str | Path,
    *,
    run: str | None = None,
    replica: str | None = None,
    ranks: int = 1,
    overrides: Sequence[str] = (),
    progress: str = "json",
    resume: bool = False,
    as_json: bool = False,
) -> list[str]:
    """The trainer for one replica, with all its ranks."""
    argv = [sys.executable, "-I", rank_runner.__file__, str(ranks)] if ranks > 1 else []
    argv += [*_module("syncline.train"), str(job), "--progress", progress]
    argv += ["--run", run] if run else []
    argv += ["--replica", replica] if replica else []
    argv += ["--resume"] if resume else []
    argv += ["--json"] if as_json else []
    for override in overrides:
        argv += ["--set", override]
    return argv


def replica_names(replicas: int, taken: Collection[str]) -> list[str]:
    """Name replicas of this machine: by number, without names by which none may join."""
    numbered = (f"replica-{number}" for number in count())
    return list(islice((name for name in numbered if name not in taken), replicas))


def devices(place: int, ranks: int, gpus: Sequence[str]) -> dict[str, str]:
    """Deal GPUs to the replica at a place, counted from 0, going round when there are too few.

    ``gpus`` are the names that CUDA_VISIBLE_DEVICES takes; the answer is the replica's
    environment. A replica never gets one GPU twice: where its ranks are too many for that, the
    trainer refuses in its own words.
    """
    if len(gpus) < ranks:  # none at all above all
        return {}
    dealt = [gpus[(place * ranks + rank) % len(gpus)] for rank in range(ranks)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(dealt)}


def metrics_port(place: int, first: int) -> list[str]:
    """Give the replica at a place a port of its own for its metrics: what overrides its job.

    ``first`` is the job's, and the first replica's; 0: nobody has one.

    Raises:
        ConfigError: there are not so many ports.
    """
    if not first:
        return []
    if first + place > PORT_MAX:
        raise ConfigError(f"log.metrics_port {first} leaves no room for {place + 1} replicas.")
    return [f"log.metrics_port={first + place}"]


def visible_gpus() -> list[str]:
    """The GPUs that children may use, found without loading CUDA."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name.strip()]
    found = Path("/proc/driver/nvidia/gpus")
    return [str(i) for i in range(len(list(found.iterdir())))] if found.is_dir() else []


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]
