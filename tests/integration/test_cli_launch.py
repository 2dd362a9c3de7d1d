"""A launch at its edges: the run that ends as it is stopped, the tool that does not end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from syncline.launch import commands, keeper
from syncline.launch.client import OperatorClient
from syncline.launch.local import LocalRun
from syncline.launch.plan import Launch
from syncline.launch.processes import Command
from syncline.launch.view import View
from syncline_proto.errors import (
    LeaseLost,
    ProcessFailed,
    RunConflict,
    StoreError,
    TrainingDiverged,
)
from syncline_proto.rest import RunCreate, RunState
from syncline_testing.cluster import Cluster
from syncline_testing.training import tiny_job
from syncline_testing.views import running
from syncline_testing.waiting import wait_until


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


def served_by(run: LocalRun, client: OperatorClient) -> None:
    """Let the launch ask a control plane that it did not start."""
    run._client = run._course._client = client


def ends_with(code: int, folder: Path, name: str, what: str = "") -> Command:
    """What a replica's end looks like from outside; ``what`` is too high, else its name."""
    said = f"error: {what or name} is too high."
    script = f"raise SystemExit(print({said!r}, file=sys.stderr) or {code})"
    return Command(name=name, argv=[sys.executable, "-c", f"import sys; {script}"], folder=folder)


def endless(folder: Path, name: str) -> Command:
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    return Command(name=name, argv=argv, folder=folder)


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
            served_by(run, client)
            yield run, client
    finally:
        cluster.stop()


def test_a_run_that_ends_as_its_time_is_up_is_no_failure(tmp_path: Path) -> None:
    with out_of_time(tmp_path) as (run, client):
        run.view.state = client.create_run(RunCreate(name=run.view.run))
        client.move_run(run.view.run, "stop")
        run._course._stop_if_due()
        assert run.view.state.state is RunState.STOPPED


def test_a_stop_that_is_refused_is_asked_for_again(tmp_path: Path) -> None:
    with out_of_time(tmp_path) as (run, client):
        run.view.state = running(run.view.run)
        run._course._stop_if_due()  # nobody knows the run yet
        assert run.view.state.state is RunState.RUNNING
        client.create_run(RunCreate(name=run.view.run))
        run._course._stop_if_due()
        assert run.view.state.state is RunState.STOPPED


def test_who_still_loads_when_the_time_is_up_is_asked_to_end_and_has_not_failed(
    tmp_path: Path,
) -> None:
    loading = endless(tmp_path, "replica-0")
    screen = Silent()
    with (
        LocalRun(launch(tmp_path, restarts=3), screen) as run,
        pytest.raises(ProcessFailed, match="stopped by --seconds-limit before training began"),
    ):
        run._keeper.replicas["replica-0"] = run._crew.start(loading)
        run.follow()
    assert screen.said == ["0 seconds are over; stopping the run."]


def test_who_comes_after_the_runs_end_has_not_failed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    refused = ends_with(RunConflict.exit_code, tmp_path, "replica-0")
    try:
        cluster.control.start()
        with (
            LocalRun(launch(tmp_path), screen := Silent()) as run,
            OperatorClient(cluster.control_url, None, call_s=5.0) as client,
        ):
            served_by(run, client)
            client.create_run(RunCreate(name=run.view.run))
            client.move_run(run.view.run, "stop")
            now = run.view.replicas["replica-0"]
            run._keeper.replicas[now.name] = run._crew.start(refused)
            run._course._replica_ended(now, RunConflict.exit_code)
            assert now.stage == "ended"
            assert screen.said == ["replica-0 was not ready before the run's end."]
    finally:
        cluster.stop()


def test_a_service_that_no_restart_would_mend_ends_the_launch_in_its_own_words(
    tmp_path: Path,
) -> None:
    screen = Silent()
    with LocalRun(launch(tmp_path, restarts=3), screen) as run:
        (run.place.folder / "store").write_text("a file where a folder should be")
        run._keeper._services["sync"] = run._crew.start(commands.sync_service(run.place))
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
            served_by(run, client)
            run._look_back()  # there is no such run yet
            assert list(run.view.replicas) == ["replica-0", "replica-1"]
            client.create_run(RunCreate(name=run.view.run))
            for name in ("replica-0", "replica-1"):
                cluster.post(f"/runs/{run.view.run}/replicas", {"replica": name})
            client.kick(run.view.run, "replica-1")
            assert [run._course._is_kicked(name) for name in run.view.replicas] == [False, True]
            run._look_back()
            assert list(run.view.replicas) == ["replica-0", "replica-2"]
    finally:
        cluster.stop()


def test_who_is_kicked_is_not_started_again_and_the_others_go_on(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.control.start()
        with (
            LocalRun(launch(tmp_path, replicas=2, restarts=3), screen := Silent()) as run,
            OperatorClient(cluster.control_url, None, call_s=5.0) as client,
        ):
            served_by(run, client)
            client.create_run(RunCreate(name=run.view.run))
            cluster.post(f"/runs/{run.view.run}/replicas", {"replica": "replica-0"})
            client.kick(run.view.run, "replica-0")
            fenced = ends_with(LeaseLost.exit_code, tmp_path, "replica-0")
            for command in (fenced, endless(tmp_path, "replica-1")):
                run._keeper.replicas[command.name] = run._crew.start(command)
            wait_until(lambda: run._keeper.alive == 1, 60, "replica-0 has ended")
            kicked = run.view.replicas["replica-0"]
            run._course._replica_ended(kicked, LeaseLost.exit_code)
            assert (kicked.stage, run._course.is_under_way) == ("kicked", True)
        said = "replica-0 was kicked, so it is not started again — the other one goes on."
        assert screen.said == [said]
    finally:
        cluster.stop()


def test_when_all_fail_the_launch_ends_with_what_the_first_said(tmp_path: Path) -> None:
    screen = Silent()
    endlessly = replace(launch(tmp_path, replicas=2), seconds_limit=None)
    with LocalRun(endlessly, screen) as run:
        for name in run.view.replicas:
            failing = ends_with(LeaseLost.exit_code, tmp_path, name)
            run._keeper.replicas[name] = run._crew.start(failing)
        with pytest.raises(ProcessFailed, match=r"LEASE_LOST.*\n    error: .* is too high\."):
            run.follow()
    assert [now.stage for now in run.view.replicas.values()] == ["failed", "failed"]
    assert sorted(line[: len("replica-N")] for line in screen.said) == ["replica-0", "replica-1"]


def test_what_all_end_with_is_said_once_as_it_goes(tmp_path: Path) -> None:
    screen = Silent()
    endlessly = replace(launch(tmp_path, replicas=3), seconds_limit=None)
    with LocalRun(endlessly, screen) as run:
        for name in run.view.replicas:
            failing = ends_with(RunConflict.exit_code, tmp_path, name, "sync_every")
            run._keeper.replicas[name] = run._crew.start(failing)
        with pytest.raises(RunConflict, match=r"^replica-0: sync_every is too high\. \(log: "):
            run.follow()
    assert sum("sync_every is too high" in line for line in screen.said) == 1
    assert "replica-1 ended as replica-0 did (log: " in screen.said[1]
    assert "replica-2 ended as replica-0 did (log: " in screen.said[2]


def test_a_training_that_diverges_is_not_started_again_and_ends_the_launch_with_its_sentence(
    tmp_path: Path,
) -> None:
    screen = Silent()
    with LocalRun(replace(launch(tmp_path, restarts=3), seconds_limit=None), screen) as run:
        failing = ends_with(TrainingDiverged.exit_code, tmp_path, "replica-0")
        run._keeper.replicas["replica-0"] = run._crew.start(failing)
        with pytest.raises(TrainingDiverged, match=r"^replica-0: .*is too high\. \(log: "):
            run.follow()
    assert len(screen.said) == 1 and "starting it again" not in screen.said[0]


def test_a_tool_that_does_not_end_is_stopped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "tool", lambda *_: endless(tmp_path, "sample"))
    monkeypatch.setattr(keeper, "TOOL_S", 1.0)
    with (
        LocalRun(launch(tmp_path), Silent()) as run,
        pytest.raises(ProcessFailed, match=r"sample did not end within 1 s and was stopped"),
    ):
        run.sample(tmp_path, "Once")
