"""A whole run on this machine: services, data, replicas, and an eye on all of them.

The way of a launch, step by step; ``keeper`` keeps its processes, and ``course`` knows what their
ends mean. One thread looks at everything a few times a second; children write to files, so nothing
here can block them. Leaving the context stops the replicas first, then the sync service, then the
control plane; being killed has the same end, since every child hangs on a lifeline (``guard``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from syncline.interrupts import Deferred
from syncline.launch import commands
from syncline.launch.client import OperatorClient
from syncline.launch.commands import Place, SyncPorts
from syncline.launch.course import Course
from syncline.launch.keeper import LOOK_S, Keeper
from syncline.launch.memory import check_memory
from syncline.launch.plan import Launch, locked
from syncline.launch.ports import free_ports, require_free
from syncline.launch.probes import grpc_serving, http_ready
from syncline.launch.processes import Crew
from syncline.launch.view import ReplicaNow, Result, Screen, View, of_export
from syncline.train.folder import prepared_folder
from syncline.train.sizes import check_budget, check_data, check_sequences
from syncline.uncollected import uncollected
from syncline_proto.errors import RunConflict, RunUnknown
from syncline_proto.rest import ReplicaState

STATE_CALL_S = 2.0
SAMPLE_TOKENS = 240


class LocalRun:
    """The processes of one launch, as a context manager that leaves none behind."""

    def __init__(self, launch: Launch, screen: Screen) -> None:
        self._launch = launch
        self._screen = screen
        self._stack = ExitStack()
        self.view = View(
            run=launch.job.run.name,
            page="",
            replicas={},
            warmup_steps=launch.job.run.warmup_steps,
        )
        self._name_replicas(kicked=())

    def __enter__(self) -> Self:
        """Take the folder.

        Raises:
            PortInUse: a wanted port is taken.
            StoreError: the folder cannot be written.
            ConfigError: another launch uses it.
        """
        launch, screen = self._launch, self._screen
        with self._stack as until_whole:
            until_whole.enter_context(locked(launch.folder))
            free = iter(free_ports(1 + 3 * launch.shards))
            self.place = Place(
                folder=launch.folder,
                control_port=_port(launch.control_port, "up.control_port", free),
                syncs=tuple(
                    SyncPorts(
                        port=_port(0 if index else launch.sync_port, "up.sync_port", free),
                        health_port=next(free),
                        metrics_port=next(free),
                    )
                    for index in range(launch.shards)
                ),
            )
            self.view.page = f"{self.place.control_url}/"
            token = os.environ.get("SYNCLINE_TOKEN")
            self._client = until_whole.enter_context(
                OperatorClient(self.place.control_url, token, call_s=STATE_CALL_S)
            )
            self._crew = until_whole.enter_context(Crew())
            self._keeper = Keeper(launch, self.place, self._crew, screen)
            self._course = Course(launch, self.view, self._client, self._keeper, screen)
            self._stack = until_whole.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def replicas_alive(self) -> int:
        return self._keeper.alive

    @property
    def has_services(self) -> bool:
        """Whether any was started."""
        return self._keeper.has_services

    def hurry(self) -> None:
        """Leave, now or later, without waiting for anybody; a signal handler may call it."""
        self._crew.hurry()

    def start(self) -> None:
        """Check the model, start the services, prepare the data, then start the replicas.

        Raises:
            SynclineError: the job cannot be trained, or something could not be started; the
                message names it and its log.
        """
        self._check_model()
        services = "the sync service" if self._launch.shards == 1 else "the sync services"
        self._screen.say(f"Starting the control plane and {services}.")
        ready = f"{self.place.control_url}/readyz"
        self._keeper.start_service(commands.control_plane(self.place), lambda: http_ready(ready))
        # Before the data, which may take long: only the control plane knows of an earlier end.
        self._look_back()
        if self._launch.job.up.page:
            self._screen.say(f"The live page is at {self.view.page}")
        self._prepare_data()
        for index, ports in enumerate(self.place.syncs):
            self._keeper.start_service(
                commands.sync_service(self.place, index),
                lambda at=ports.health_address: grpc_serving(at),
            )
        count = len(self.view.replicas)
        replicas = "1 replica" if count == 1 else f"{count} replicas"
        self._screen.say(f"Starting {replicas}; loading PyTorch takes some seconds.")
        self._keeper.start_replicas(self.view.replicas)

    def follow(self) -> Result:
        """Watch until the replicas have ended; return how.

        Raises:
            ProcessFailed: a service died once too often, or no replica came to its end and there
                is no revision to show for it.
            SynclineError: the settings, files or model were wrong for every replica, or a service
                ended with what a restart does not mend.
        """
        self._look()
        while self._course.is_under_way:
            time.sleep(LOOK_S)
            self._look()
        ended = self._course.conclude(self.place.logs)
        self._screen.update(self.view)
        return ended

    def export(self, ended: Result, out: Path) -> Result:
        """Write the merged model as a folder that transformers loads; tell of what was written."""
        self._screen.say(f"Exporting the merged model to {out}.")
        to = ("--out", str(out), "--overwrite", "--json")
        made = self._keeper.tool("export", ["export", self.view.run, *to])
        return of_export(ended, made, self.view.warmup_steps)

    def sample(self, folder: Path, prompt: str) -> str:
        """Load an export with transformers in a process of its own; return what it writes."""
        self._screen.say("Loading the export with transformers for a sample.")
        length = ("--tokens", str(SAMPLE_TOKENS))
        arguments = ["sample", str(folder), "--prompt", prompt, *length, "--json"]
        return str(self._keeper.tool("sample", arguments)["text"])

    def keep(self) -> None:
        """Keep the services running until the caller is interrupted."""
        while True:
            self._keeper.keep_services()
            time.sleep(LOOK_S)

    def _look(self) -> None:
        """Look once at every process and at the run, and show it."""
        self._keeper.keep_services()
        self._course.look()
        self._screen.update(self.view)

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
        kicked = {one.replica for one in known if one.state is ReplicaState.KICKED}
        self._name_replicas(kicked)

    def _name_replicas(self, kicked: Collection[str]) -> None:
        """Give each place a replica's name; who was kicked may not join by the same one."""
        names = commands.replica_names(self._launch.replicas, kicked)
        self.view.replicas = {name: ReplicaNow(name=name) for name in names}

    def _check_model(self) -> None:
        """Refuse here, with nothing started, what every replica would refuse."""
        job, ranks = self._launch.job, self._launch.ranks
        check_budget(job, ranks=ranks, replicas=job.run.replicas)
        with Deferred(), uncollected():  # a factory's module may import torch
            check_data(job, ranks=ranks)
        self._screen.say("Checking the model.")
        with Deferred(), uncollected():
            from syncline.train.made import check_made  # torch takes seconds to import

            parameters = check_made(job)
        if parameters is not None:
            on_gpus = len(commands.visible_gpus()) >= ranks
            check_memory(parameters, self._launch.replicas, on_gpus=on_gpus)
            self._keeper.check_fits = partial(check_memory, parameters, on_gpus=on_gpus)

    def _prepare_data(self) -> None:
        data = self._launch.job.data
        if data.url is not None:
            self._screen.say(f"Fetching the data ({data.url}), as far as it is not here.")
        elif data.source is not None:
            self._screen.say(f"Preparing the data ({', '.join(data.source)}).")
        else:
            return
        folder = prepared_folder(data, progress=True)
        check_sequences(self._launch.job, folder, ranks=self._launch.ranks)


def _port(wanted: int, setting: str, free: Iterator[int]) -> int:
    return require_free(wanted, f"--set {setting}=PORT") if wanted else next(free)
