"""The processes of one launch: started, started again while that is allowed, and read.

Services that die come back by themselves. Whether a replica that ended is to come back is for
``course`` to say; nothing here knows what an end means for the run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from syncline.launch import commands
from syncline.launch.commands import Place
from syncline.launch.plan import Launch
from syncline.launch.probes import own_error, wait_ready
from syncline.launch.processes import Command, Crew, Process, describe_exit
from syncline.launch.view import Screen
from syncline.train.steps import checkpoints_in
from syncline_proto.errors import (
    ConfigError,
    ProcessFailed,
    StoreDamaged,
    StoreError,
    TrainingDiverged,
)

LOOK_S = 0.2
REPLICAS_MAX = 1024
"""On one machine, as a job and ``up --replicas`` have it."""
TOOL_S = 600.0
"""An export or a sample takes no longer."""

HOPELESS = (*range(10, 20), TrainingDiverged.exit_code)
"""Exit codes of wrong settings, files and models, and of a training that diverges.

A restart would end in the same way.
"""
NO_STORE = (StoreError.exit_code, StoreDamaged.exit_code)
"""Of a service: its disk is full, or what lies on it cannot be read."""


class Keeper:
    """Keeps a launch's processes; the crew stops them."""

    def __init__(self, launch: Launch, place: Place, crew: Crew, screen: Screen) -> None:
        self.replicas: dict[str, Process] = {}
        """By name; one that has ended stays until it is started again."""
        self._launch, self._place, self._crew, self._screen = launch, place, crew, screen
        self._services: dict[str, Process] = {}
        self._places: dict[str, int] = {}
        """Of replicas that were ever started: each has its GPUs and its port by that."""
        self._restarts: dict[str, int] = {}
        self.check_fits: Callable[[int], None] = lambda _: None
        """Whether this machine may have so many replicas; raises ConfigError."""

    @property
    def alive(self) -> int:
        """How many replicas run."""
        return sum(process.exit_code is None for process in self.replicas.values())

    @property
    def has_services(self) -> bool:
        return bool(self._services)

    def start_service(self, command: Command, is_ready: Callable[[], bool]) -> None:
        """Start a service, and return when it is ready.

        Raises:
            SynclineError: as ``wait_ready``.
        """
        process = self._services[command.name] = self._crew.start(command)
        wait_ready(process, is_ready)

    def start_replicas(self, names: Collection[str]) -> None:
        """Start replicas of these names; each has its part of this machine's GPUs and ports.

        Raises:
            ConfigError: there are not so many ports, or no room for so many; nothing is started.
        """
        count = self.alive + len(names)
        if count > REPLICAS_MAX:
            raise ConfigError(f"{count} replicas are too many here; {REPLICAS_MAX} are the most.")
        self.check_fits(count)
        last = len(self._places.keys() | set(names)) - 1
        commands.metrics_port(last, self._launch.job.log.metrics_port)
        for name in names:
            self._places.setdefault(name, len(self._places))
            if name in self.replicas:
                self._crew.remove(self.replicas[name])
            self._start_replica(name)

    def end_replica(self, name: str) -> None:
        """Ask a replica to push what it did and leave."""
        self.replicas[name].terminate()

    def restarted(self, name: str, code: int) -> bool:
        """Start a replica that ended with ``code`` again; False if it may not be any more."""
        if not self._may_restart(name, code):
            return False
        self._crew.remove(self.replicas[name])
        self._start_replica(name)
        return True

    def news(self) -> Iterator[tuple[str, list[str], int | None]]:
        """Yield each replica's name, new lines of output, and exit code, None while it runs."""
        for name, process in tuple(self.replicas.items()):
            code = process.exit_code  # before its last lines, so that none is missed
            yield name, process.lines(), code

    def end_replicas(self) -> None:
        """Ask all replicas to end."""
        for process in self.replicas.values():
            process.terminate()

    def keep_services(self) -> None:
        """Start a service that died again, on the same ports and store.

        Raises:
            SynclineError: a restart does not mend it; in the service's own words.
            ProcessFailed, StoreError: it died once too often.
        """
        for name, process in tuple(self._services.items()):
            code = process.exit_code
            if code is None:
                continue
            if code in HOPELESS or code in NO_STORE:
                raise own_error(process)
            if not self._may_restart(name, code):
                raise process.failure()
            self._crew.remove(process)
            self._services[name] = self._crew.start(process.command)

    def tool(self, name: str, arguments: Sequence[str]) -> dict[str, Any]:
        """Run one of our own commands beside the services; return the JSON that it prints.

        Raises:
            SynclineError: it failed, with its own words.
            ProcessFailed: it did not end within ``TOOL_S``.
        """
        process = self._crew.start(commands.tool(self._place, name, arguments))
        end = time.monotonic() + TOOL_S
        while process.exit_code is None and time.monotonic() < end:
            self.keep_services()
            time.sleep(LOOK_S)
        if process.exit_code is None:
            self._crew.remove(process)
            raise ProcessFailed(
                f"{name} did not end within {TOOL_S:.0f} s and was stopped; "
                f"its log is {process.command.log}."
            )
        if process.exit_code != 0:
            raise own_error(process)
        told = json.loads("\n".join(process.lines()))
        self._crew.remove(process)
        return told

    def _start_replica(self, name: str) -> None:
        launch, place = self._launch, self._places[name]
        port = commands.metrics_port(place, launch.job.log.metrics_port)
        devices = commands.devices(place, launch.ranks, commands.visible_gpus())
        argv = commands.trainer(
            launch.job_file,
            replica=name,
            ranks=launch.ranks,
            overrides=[*launch.overrides, *port],
            resume=self._has_checkpoint(name),
        )
        env = {"OMP_NUM_THREADS": launch.threads, **devices}
        command = commands.replica(self._place, name, argv, grace_s=launch.grace_s, env=env)
        self.replicas[name] = self._crew.start(command)

    def _may_restart(self, name: str, code: int) -> bool:
        """Whether a process may be started again; if so, that is said."""
        used = self._restarts.get(name, 0)
        if used >= self._launch.restarts:
            return False
        self._restarts[name] = used + 1
        self._screen.say(f"{name} ended with {describe_exit(code)}; starting it again.")
        return True

    def _has_checkpoint(self, name: str) -> bool:
        """Whether an earlier life of the replica left its inner state."""
        job = self._launch.job
        folder = job.checkpoint.folder
        return folder is not None and bool(checkpoints_in(folder / job.run.name / name))
