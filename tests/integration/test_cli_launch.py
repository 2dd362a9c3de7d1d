"""A launch at its edges: the run that ends as it is stopped, the tool that does not end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from syncline.launch import commands, local
from syncline.launch.client import OperatorClient
from syncline.launch.local import LocalRun
from syncline.launch.plan import Launch
from syncline.launch.processes import Command
from syncline.launch.view import View
from syncline_proto.errors import ProcessFailed, RunConflict, StoreError
from syncline_proto.rest import RunCreate, RunState
from syncline_testing.cluster import Cluster
from syncline_testing.training import tiny_job
from syncline_testing.views import running


class Silent:
    """A screen that nobody looks at."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def update(self, view: View) -> None:
        pass


def launch(folder: Path, replicas: int = 1, restarts: int = 0) -> Launch:
    return Launch(
        job_file=folder / "job.toml",
        job=tiny_job(folder / "tokens", steps=1),
        overrides=(),
        folder=folder / "launch",
        replicas=replicas,
        restarts=restarts,
        seconds_limit=0.0,
    )


@contextmanager
def out_of_time(folder: Path) -> Iterator[tuple[LocalRun, OperatorClient]]:
    """A launch whose time is up, with a real control plane that does not know its run yet."""
    cluster = Cluster(folder)
    try:
        cluster.control.start()
        with (
            LocalRun(launch(folder), Silent()) as run,
            OperatorClient(cluster.control_url, None, call_s=5.0) as client,
        ):
            run._client = client
            yield run, client
    finally:
        cluster.stop()


def test_a_run_that_ends_as_its_time_is_up_is_no_failure(tmp_path: Path) -> None:
    with out_of_time(tmp_path) as (run, client):
        run.view.state = client.create_run(RunCreate(name=run.view.run))
        client.move_run(run.view.run, "stop")
        run._stop_if_due()
        assert run.view.state.state is RunState.STOPPED


def test_a_stop_that_is_refused_is_asked_for_again(tmp_path: Path) -> None:
    with out_of_time(tmp_path) as (run, client):
        run.view.state = running(run.view.run)
        run._stop_if_due()  # nobody knows the run yet
        assert run.view.state.state is RunState.RUNNING
        client.create_run(RunCreate(name=run.view.run))
        run._stop_if_due()
        assert run.view.state.state is RunState.STOPPED


def test_who_still_loads_when_the_time_is_up_is_asked_to_end_and_has_not_failed(
    tmp_path: Path,
) -> None:
    loading = Command(
        name="replica-0",
        argv=[sys.executable, "-c", "import time; time.sleep(600)"],
        folder=tmp_path,
    )
    screen = Silent()
    with (
        LocalRun(launch(tmp_path, restarts=3), screen) as run,
        pytest.raises(ProcessFailed, match="stopped by --seconds-limit before training began"),
    ):
        run._replicas["replica-0"] = run._crew.start(loading)
        run.follow()
    assert screen.said == ["0 seconds are over; stopping the run."]


def test_who_comes_after_the_runs_end_has_not_failed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    refused = Command(
        name="replica-0", argv=[sys.executable, "-c", "raise SystemExit(16)"], folder=tmp_path
    )
    try:
        cluster.control.start()
        with (
            LocalRun(launch(tmp_path), screen := Silent()) as run,
            OperatorClient(cluster.control_url, None, call_s=5.0) as client,
        ):
            run._client = client
            client.create_run(RunCreate(name=run.view.run))
            client.move_run(run.view.run, "stop")
            process = run._replicas["replica-0"] = run._crew.start(refused)
            run._replica_ended("replica-0", process, RunConflict.exit_code)
            assert run.view.replicas["replica-0"].stage == "ended"
            assert screen.said == ["replica-0 was not ready before the run's end."]
    finally:
        cluster.stop()


def test_a_service_that_no_restart_would_mend_ends_the_launch_in_its_own_words(
    tmp_path: Path,
) -> None:
    screen = Silent()
    with LocalRun(launch(tmp_path, restarts=3), screen) as run:
        (run.place.folder / "store").write_text("a file where a folder should be")
        run._services["sync"] = run._crew.start(commands.sync_service(run.place))
        with pytest.raises(StoreError, match=r"^sync: .*--data.*\(log: "):
            run.keep()
    assert not screen.said


def test_who_was_kicked_is_known_and_gives_its_place_to_another_name(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.control.start()
        with (
            LocalRun(launch(tmp_path, replicas=2), Silent()) as run,
            OperatorClient(cluster.control_url, None, call_s=5.0) as client,
        ):
            run._client = client
            run._look_back()  # there is no such run yet
            assert list(run.view.replicas) == ["replica-0", "replica-1"]
            client.create_run(RunCreate(name=run.view.run))
            for name in ("replica-0", "replica-1"):
                cluster.post(f"/runs/{run.view.run}/replicas", {"replica": name})
            client.kick(run.view.run, "replica-1")
            assert (run._is_kicked("replica-0"), run._is_kicked("replica-1")) == (False, True)
            run._look_back()
            assert list(run.view.replicas) == list(run._devices) == ["replica-0", "replica-2"]
    finally:
        cluster.stop()


def test_a_tool_that_does_not_end_is_stopped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Command(
        name="sample", argv=[sys.executable, "-c", "import time; time.sleep(600)"], folder=tmp_path
    )
    monkeypatch.setattr(commands, "tool", lambda *_: endless)
    monkeypatch.setattr(local, "TOOL_S", 1.0)
    with (
        LocalRun(launch(tmp_path), Silent()) as run,
        pytest.raises(ProcessFailed, match=r"sample did not end within 1 s and was stopped"),
    ):
        run.sample(tmp_path, "Once")
