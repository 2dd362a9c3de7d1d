"""A launch at its edges: the run that ends as it is stopped, the tool that does not end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from syncline.launch import commands, local
from syncline.launch.client import OperatorClient
from syncline.launch.local import LocalRun
from syncline.launch.plan import Launch
from syncline.launch.processes import Command
from syncline.launch.view import View
from syncline_proto.errors import ProcessFailed
from syncline_proto.rest import RunCreate, RunState
from syncline_testing.cluster import Cluster
from syncline_testing.training import tiny_job


class Silent:
    """A screen that nobody looks at."""

    def say(self, sentence: str) -> None:
        pass

    def update(self, view: View) -> None:
        pass


def launch(folder: Path) -> Launch:
    return Launch(
        job_file=folder / "job.toml",
        job=tiny_job(folder / "tokens", steps=1),
        overrides=(),
        folder=folder / "launch",
        replicas=1,
        seconds_limit=0.0,
    )


def test_a_run_that_ends_as_its_time_is_up_is_no_failure(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.control.start()
        with (
            LocalRun(launch(tmp_path), Silent()) as run,
            OperatorClient(cluster.control_url, None, call_s=5.0) as client,
        ):
            run._client = client
            run.view.state = client.create_run(RunCreate(name=run.view.run))
            cluster.post(f"/runs/{run.view.run}/stop")
            run._stop_if_due()
            assert run.view.state.state is RunState.STOPPED
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
