"""A whole run on this machine: services, replicas, and an eye on all of them.

One thread looks at everything a few times a second; children write to files, so nothing here can
block them. Leaving the context stops the replicas first, then the sync service, then the control
plane; being killed has the same end, since every child hangs on a lifeline (``guard``).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, Self

from syncline.launch import commands
from syncline.launch.client import OperatorClient
from syncline.launch.commands import Place
from syncline.launch.plan import Launch, locked
from syncline.launch.ports import free_ports, require_free
from syncline.launch.probes import grpc_serving, http_ready, own_error, wait_ready
from syncline.launch.processes import Crew, Process, describe_exit
from syncline.launch.view import ReplicaNow, ReplicaStage, Result, View, of_export, result
from syncline.train.folder import prepared_folder
from syncline.train.sizes import check_budget, check_data, check_sequences
from syncline_proto.errors import (
    CalledOff,
    ProcessFailed,
    RunConflict,
    RunUnknown,
    StoreDamaged,
    StoreError,
    SynclineError,
)
from syncline_proto.rest import ReplicaState

LOOK_S = 0.2
STATE_S = 1.0
"""Between two questions to the control plane."""
STATE_CALL_S = 2.0
TOOL_S = 600.0
"""An export or a sample takes no longer."""
SAMPLE_TOKENS = 240

UNDER_WAY = ("starting", "training")
HOPELESS = range(10, 20)
"""Exit codes of wrong settings, files and models: a restart would end in the same way."""
NO_STORE = (StoreError.exit_code, StoreDamaged.exit_code)
"""Of a service: its disk is full, or what lies on it cannot be read."""


class Screen(Protocol):
    """Somebody who shows how it goes."""

    def say(self, sentence: str) -> None:
        """Tell what happens now."""
        ...

    def update(self, view: View) -> None:
        """Show the newest view; called several times a second."""
        ...


class LocalRun:
    """The processes of one launch, as a context manager that leaves none behind."""

    def __init__(self, launch: Launch, screen: Screen) -> None:
        self._launch = launch
        self._screen = screen
        self._stack = ExitStack()
        self._services: dict[str, Process] = {}
        self._replicas: dict[str, Process] = {}
        self._restarts: dict[str, int] = {}
        self._failure: SynclineError | None = None
        self._is_cut_short = False
        """The time was up before anybody trained."""
        self._state_at = 0.0
        self._began = time.monotonic()
        self._devices: dict[str, dict[str, str]] = {}
        self.view = View(
            run=launch.job.run.name,
            page="",
            replicas={},
            warmup_steps=launch.job.run.warmup_steps,
        )
        self._name_places(kicked=())

    def __enter__(self) -> Self:
        """Take the folder.

        Raises:
            PortInUse: a wanted port is taken.
            StoreError: the folder cannot be written.
            ConfigError: another launch uses it.
        """
        launch = self._launch
        with self._stack as until_whole:
            until_whole.enter_context(locked(launch.folder))
            free = iter(free_ports(4))
            self.place = Place(
                folder=launch.folder,
                control_port=_port(launch.control_port, "up.control_port", free),
                sync_port=_port(launch.sync_port, "up.sync_port", free),
                sync_health_port=next(free),
                sync_metrics_port=next(free),
            )
            self.view.page = f"{self.place.control_url}/"
            token = os.environ.get("SYNCLINE_TOKEN")
            self._client = until_whole.enter_context(
                OperatorClient(self.place.control_url, token, call_s=STATE_CALL_S)
            )
            self._crew = until_whole.enter_context(Crew())
            self._stack = until_whole.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Check the model, start the services, prepare the data, then start the replicas.

        Raises:
            SynclineError: the job cannot be trained, or something could not be started; the
                message names it and its log.
        """
        self._check_model()
        self._screen.say("Starting the control plane and the sync service.")
        self._services["control"] = self._crew.start(commands.control_plane(self.place))
        ready = f"{self.place.control_url}/readyz"
        wait_ready(self._services["control"], lambda: http_ready(ready))
        # Before the data, which may take long: only the control plane knows of an earlier end.
        self._look_back()
        if self._launch.job.up.page:
            self._screen.say(f"The live page is at {self.view.page}")
        self._prepare_data()
        self._services["sync"] = self._crew.start(commands.sync_service(self.place))
        wait_ready(self._services["sync"], lambda: grpc_serving(self.place.sync_address))
        count = len(self.view.replicas)
        self._screen.say(f"Starting {count} replicas; loading PyTorch takes some seconds.")
        for name in self.view.replicas:
            self._start_replica(name)

    def follow(self) -> Result:
        """Watch until the replicas have ended; return how.

        Raises:
            ProcessFailed: a service died once too often, or no replica came to its end and there
                is no revision to show for it.
            SynclineError: the settings, files or model were wrong for every replica, or a service
                ended with what a restart does not mend.
        """
        self.look()
        while any(now.stage in UNDER_WAY for now in self.view.replicas.values()):
            time.sleep(LOOK_S)
            self.look()
        self._ask_state()
        self._screen.update(self.view)
        seconds = time.monotonic() - self._began
        ended = result(self.view, str(self._launch.folder), seconds)
        failure = self._failure
        if self._is_cut_short and (ended is None or not ended.revision):
            raise ProcessFailed(
                "The run was stopped by --seconds-limit before training began; allow more seconds."
            )
        if ended is None:
            raise failure or ProcessFailed(
                f"The replicas left before the run's end; their logs are in {self.place.logs}."
            )
        over = ended.has_ended or (failure is not None and failure.exit_code in HOPELESS)
        if failure is not None and over and not ended.replicas:
            raise failure  # the same command would not go on
        return ended

    def look(self) -> None:
        """Look once at every process and at the run, and show it."""
        self._keep_services()
        for name, process in tuple(self._replicas.items()):
            code = process.exit_code  # before its last lines, so that none is missed
            self.view.replicas[name].hear(process.lines())
            if code is not None and self.view.replicas[name].stage in UNDER_WAY:
                self._replica_ended(name, process, code)
        if time.monotonic() - self._state_at > STATE_S:
            self._ask_state()
            self._stop_if_due()
        self._screen.update(self.view)

    def export(self, ended: Result, out: Path) -> Result:
        """Write the merged model as a folder that transformers loads; tell of what was written."""
        self._screen.say(f"Exporting the merged model to {out}.")
        to = ("--out", str(out), "--overwrite", "--json")
        made = self._tool("export", ["export", self.view.run, *to])
        return of_export(ended, made, self.view.warmup_steps)

    def sample(self, folder: Path, prompt: str) -> str:
        """Load an export with transformers in a process of its own; return what it writes."""
        self._screen.say("Loading the export with transformers for a sample.")
        length = ("--tokens", str(SAMPLE_TOKENS))
        told = self._tool("sample", ["sample", str(folder), "--prompt", prompt, *length, "--json"])
        return str(told["text"])

    def keep(self) -> None:
        """Keep the services running until the caller is interrupted."""
        while True:
            self._keep_services()
            time.sleep(LOOK_S)

    def _look_back(self) -> None:
        """A folder of an earlier launch may hold this run, and only a run under way goes on."""
        try:
            found = self._client.run(self.view.run)
            known = self._client.replicas(self.view.run)
        except RunUnknown:
            return
        if found.ended_at is not None:
            raise RunConflict(
                f"The run {found.name} in {self._launch.folder} is {found.state.value}; start "
                "another with --set run.name=NAME, or in another folder with --out."
            )
        self._name_places(kicked={one.replica for one in known if one.state is ReplicaState.KICKED})

    def _name_places(self, kicked: Collection[str]) -> None:
        """Give each place a replica's name; who was kicked may not join by the same one."""
        launch = self._launch
        names = commands.replica_names(launch.replicas, kicked)
        devices = commands.devices(len(names), launch.ranks, commands.visible_gpus())
        self._devices = dict(zip(names, devices, strict=True))
        self.view.replicas = {name: ReplicaNow(name=name) for name in names}

    def _check_model(self) -> None:
        """Refuse here, with nothing started, what every replica would refuse."""
        job, ranks = self._launch.job, self._launch.ranks
        check_budget(job, ranks=ranks, replicas=job.run.replicas)
        check_data(job, ranks=ranks)
        self._screen.say("Checking the model.")
        from syncline.train.model import check_model  # torch takes seconds to import

        check_model(job)

    def _prepare_data(self) -> None:
        data = self._launch.job.data
        if data.path is not None:
            return
        self._screen.say(f"Preparing the data ({', '.join(data.source or [])}).")
        folder = prepared_folder(data, progress=True)
        check_sequences(self._launch.job, folder, ranks=self._launch.ranks)

    def _start_replica(self, name: str) -> None:
        launch = self._launch
        argv = commands.trainer(
            launch.job_file,
            replica=name,
            ranks=launch.ranks,
            overrides=launch.overrides,
            resume=self._has_checkpoint(name),
        )
        env = {"OMP_NUM_THREADS": launch.threads, **self._devices[name]}
        command = commands.replica(self.place, name, argv, grace_s=launch.grace_s, env=env)
        self._replicas[name] = self._crew.start(command)

    def _replica_ended(self, name: str, process: Process, code: int) -> None:
        """Take note of a replica's end; start it again where that helps."""
        now = self.view.replicas[name]
        if self._is_cut_short:
            now.stage = "ended"
            return
        if code in (0, CalledOff.exit_code):
            now.stage = "ended"
            if now.ending is None:
                self._screen.say(f"{name} has left.")
            return
        if code == RunConflict.exit_code and self._came_too_late():
            now.stage = "ended"
            self._failure = self._failure or own_error(process)
            self._screen.say(f"{name} was not ready before the run's end.")
            return
        if code not in HOPELESS and self._is_kicked(name):
            said = f"{name} was kicked, so it is not started again"
            self._failure = self._failure or ProcessFailed(f"{said}.")
            self._give_up(now, "kicked", said)
            return
        failure = own_error(process)
        # What a person can put right ends the launch in its own words, all else with the log's end.
        self._failure = self._failure or (failure if code in HOPELESS else process.failure())
        if code not in HOPELESS and self._may_restart(name):
            self._screen.say(f"{name} ended with {describe_exit(code)}; starting it again.")
            now.stage = "starting"
            self._crew.remove(process)
            self._start_replica(name)
            return
        self._give_up(now, "failed", failure.message)

    def _give_up(self, now: ReplicaNow, stage: ReplicaStage, said: str) -> None:
        """Start the replica no more; say why, and whether others go on."""
        now.stage = stage
        alive = sum(p.exit_code is None for p in self._replicas.values())
        rest = f"the other {alive} go on" if alive > 1 else "the other one goes on"
        self._screen.say(f"{said} — {rest}." if alive else said)

    def _is_kicked(self, name: str) -> bool:
        """Whether an operator took the replica's name away: starting it again would be in vain."""
        try:
            known = self._client.replicas(self.view.run)
        except SynclineError:
            return False  # whoever starts it again meanwhile will hear it, and ask again
        return any(one.replica == name and one.state is ReplicaState.KICKED for one in known)

    def _came_too_late(self) -> bool:
        """Whether the run has ended, which is why it takes nobody in any more."""
        self._ask_state()
        return self.view.has_ended

    def _keep_services(self) -> None:
        """Start a service that died again, on the same ports and store, or end."""
        for name, process in tuple(self._services.items()):
            code = process.exit_code
            if code is None:
                continue
            if code in HOPELESS or code in NO_STORE:
                raise own_error(process)
            if not self._may_restart(name):
                raise process.failure()
            self._screen.say(f"{name} ended with {describe_exit(code)}; starting it again.")
            self._crew.remove(process)
            self._services[name] = self._crew.start(process.command)

    def _may_restart(self, name: str) -> bool:
        used = self._restarts.get(name, 0)
        self._restarts[name] = used + 1
        return used < self._launch.restarts

    def _has_checkpoint(self, name: str) -> bool:
        """Whether an earlier life of the replica left its inner state."""
        job = self._launch.job
        folder = job.checkpoint.folder
        return folder is not None and any((folder / job.run.name / name).glob("step-*"))

    def _ask_state(self) -> None:
        self._state_at = time.monotonic()
        try:
            self.view.state = self._client.run(self.view.run)
        except SynclineError:
            return  # not created yet, or the control plane is on its way back; the last one stands

    def _stop_if_due(self) -> None:
        limit = self._launch.seconds_limit
        if limit is None or self._is_cut_short or self.view.has_ended:
            return
        if time.monotonic() - self._began <= limit:
            return
        self._screen.say(f"{limit:.0f} seconds are over; stopping the run.")
        if self.view.state is not None:
            self._stop()
            if not self.view.has_ended:
                return  # asked again with the next question
        if not any(replica.begun for replica in self.view.replicas.values()):
            # They may load for long yet, and the run would refuse them.
            self._is_cut_short = True
            for process in self._replicas.values():
                process.terminate()

    def _stop(self) -> None:
        try:
            self.view.state = self._client.move_run(self.view.run, "stop")
        except RunConflict:
            self._ask_state()  # it has just come to its end by itself
        except SynclineError:
            return

    def _tool(self, name: str, arguments: Sequence[str]) -> dict[str, Any]:
        """Run one of our own commands beside the services; return the JSON that it prints."""
        process = self._crew.start(commands.tool(self.place, name, arguments))
        end = time.monotonic() + TOOL_S
        while process.exit_code is None and time.monotonic() < end:
            self._keep_services()
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


def _port(wanted: int, setting: str, free: Iterator[int]) -> int:
    return require_free(wanted, f"--set {setting}=PORT") if wanted else next(free)
