"""More replicas are wanted, or more than this machine can have: those that train go on.

And what a launch says of a run by time.

No process is started: what would be is only noted.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from syncline.launch import course
from syncline.launch.commands import Place
from syncline.launch.course import Course
from syncline.launch.keeper import REPLICAS_MAX, Keeper
from syncline.launch.plan import plan_up
from syncline.launch.view import ReplicaNow, View
from syncline_proto.errors import ConfigError
from syncline_proto.rest import ReplicaState, ReplicaView, RunState, RunView
from syncline_proto.settings import RunSettings

PORTS = 20
JOB = f"""
[run]
name = "tiny"
token_budget = 10_000
[model]
config = {{ model_type = "llama" }}
[data]
source = ["builtin"]
[log]
metrics_port = {65_536 - PORTS}
"""


@pytest.fixture(autouse=True)
def every_look_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "STATE_S", -1.0)


class Launched:
    """A launch of two replicas that run; its own crew, screen and control plane."""

    def __init__(self, folder: Path) -> None:
        (folder / "job.toml").write_text(JOB)
        launch = plan_up(str(folder / "job.toml"), str(folder), [], None, 3, None)
        self.started: list[str] = []
        self.asked: list[str] = []
        """To leave."""
        self.said: list[str] = []
        self.settings = RunSettings()
        self.wanted: int | None = None
        self.known: list[ReplicaView] = []
        place, me = Place(folder=folder, control_port=1, syncs=()), self.me()
        self.keeper = Keeper(launch, place, me, me)
        self.view = View(run="tiny", page="", replicas={})
        self.course = Course(launch, self.view, me, self.keeper, me)
        names = ("replica-0", "replica-1")
        self.view.replicas.update({name: ReplicaNow(name=name) for name in names})
        self.keeper.start_replicas(names)

    def me(self) -> Any:
        """The crew, the screen and the client at once, as far as they are asked."""
        return SimpleNamespace(
            start=self._start,
            say=self.said.append,
            run=lambda _: RunView(
                name="tiny",
                state=RunState.RUNNING,
                settings=self.settings,
                settings_version=1,
                created_at=0.0,
                replicas_wanted=self.wanted,
            ),
            replicas=lambda _: self.known,
        )

    def _start(self, command: Any) -> Any:
        self.started.append(command.name)

        def terminate() -> None:
            self.asked.append(command.name)

        return SimpleNamespace(exit_code=None, lines=list, command=command, terminate=terminate)

    def scaled(self, wanted: int, looks: int = 1) -> None:
        self.wanted = wanted
        for _ in range(looks):
            self.course.look()


@pytest.mark.parametrize("wanted", [PORTS + 1, REPLICAS_MAX + 1, 10_000])
def test_who_wants_more_than_there_can_be_ends_nobody(tmp_path: Path, wanted: int) -> None:
    launched = Launched(tmp_path)
    launched.scaled(wanted, looks=2)
    assert launched.started == ["replica-0", "replica-1"]
    assert list(launched.view.replicas) == launched.started, "nobody is shown who is not there"
    (said,) = launched.said
    assert said.startswith(f"{wanted} replicas are wanted, and none is started.")
    launched.scaled(3)
    assert launched.started[2:] == ["replica-2"] == list(launched.view.replicas)[2:]


def test_replicas_that_come_later_have_to_fit_into_memory_too(tmp_path: Path) -> None:
    launched = Launched(tmp_path)

    def check(replicas: int) -> None:
        if replicas > 3:
            raise ConfigError(f"{replicas} do not fit.")

    launched.keeper.check_fits = check
    launched.scaled(4)
    assert launched.said == ["4 replicas are wanted, and none is started. 4 do not fit."]
    launched.scaled(3)
    assert launched.started[2:] == ["replica-2"]


def test_who_is_too_many_leaves_the_newest_first_and_those_elsewhere_count(tmp_path: Path) -> None:
    launched = Launched(tmp_path)
    launched.scaled(4)
    assert launched.started[2:] == ["replica-2", "replica-3"]
    launched.known = [
        ReplicaView(replica="guest", incarnation=1, state=ReplicaState.ALIVE),
        ReplicaView(replica="gone", incarnation=1, state=ReplicaState.LEFT),
        ReplicaView(replica="kicked", incarnation=1, state=ReplicaState.KICKED),
    ]
    launched.scaled(3, looks=2)
    assert launched.asked == ["replica-2", "replica-3"], "the guest is one of three"
    launched.scaled(2)
    assert launched.asked == ["replica-2", "replica-3", "replica-1"], "who leaves is none of them"
    assert launched.started[4:] == []
    assert launched.said[-1] == "replica-1 leaves: 2 replicas are wanted."


def test_a_name_that_was_taken_away_is_given_to_nobody(tmp_path: Path) -> None:
    launched = Launched(tmp_path)
    launched.known = [
        ReplicaView(replica="replica-2", incarnation=1, state=ReplicaState.KICKED),
    ]
    launched.scaled(3)
    assert launched.started[2:] == ["replica-3"]


def test_nobody_is_started_by_the_name_of_one_that_trains_elsewhere(tmp_path: Path) -> None:
    """It would be taken for another life of that one, which would be told to end."""
    launched = Launched(tmp_path)
    launched.known = [
        ReplicaView(replica=f"replica-{number}", incarnation=1, state=state)
        for number, state in enumerate((ReplicaState.ALIVE,) * 3 + (ReplicaState.DRAINING,))
    ]
    launched.scaled(6)
    assert launched.started[2:] == ["replica-4", "replica-5"]


def test_a_run_by_time_says_once_when_its_first_round_comes(tmp_path: Path) -> None:
    """A small budget is long used up by then, and nothing else would have seemed to happen."""
    launched = Launched(tmp_path)
    launched.settings = RunSettings.model_validate({"strategy": "a-edit"})
    launched.scaled(2, looks=3)
    (said,) = launched.said
    assert "a round every 600 s (run.sync_seconds)" in said and "\n" not in said
    by_steps = Launched(tmp_path)
    by_steps.scaled(2, looks=3)
    assert by_steps.said == []
