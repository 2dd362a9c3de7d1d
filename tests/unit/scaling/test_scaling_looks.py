"""Which runs a scaler of all runs sees to, and what of them it does not wait for.

The control plane and the workloads are stand-ins, which answer at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from syncline.scaling import watch
from syncline.scaling.core import FAILURES_MAX, Observed
from syncline.scaling.watch import Scaler
from syncline_proto.errors import ConfigError, Unreachable
from syncline_proto.rest import ReplicaState, ReplicaView, RunState, RunView
from syncline_proto.settings import RunSettings


class Workloads:
    """Those that are there, by their runs, with how many replicas each has."""

    def __init__(self, **replicas: int) -> None:
        self.replicas = replicas

    def of(self, run: str) -> Any:
        return SimpleNamespace(look=lambda: self._look(run), scale=lambda n: self._scale(run, n))

    def _look(self, run: str) -> Observed:
        if run not in self.replicas:
            raise ConfigError(f"There is no {run}.")
        is_own = lambda name: name.startswith("worker-")  # noqa: E731
        return Observed(replicas=self.replicas[run], is_own=is_own, starts_again=True)

    def _scale(self, run: str, replicas: int) -> None:
        self.replicas[run] = replicas


def run(name: str, *, ended: bool = False) -> RunView:
    return RunView(
        name=name,
        state=RunState.STOPPED if ended else RunState.RUNNING,
        settings=RunSettings(),
        settings_version=1,
        created_at=0.0,
        ended_at=1.0 if ended else None,
        replicas_wanted=2,
    )


def scaler(
    workloads: Workloads, warned: list[str], *runs: RunView, known: Sequence[ReplicaView] = ()
) -> Scaler:
    client: Any = SimpleNamespace(runs=lambda: list(runs), replicas=lambda _: list(known))
    return Scaler(client, None, workloads.of, lambda _: None, warned.append)


def test_a_run_that_has_ended_needs_no_workload_and_any_other_does() -> None:
    """Who ends a run may remove its workload; that must not end the scaler of all others."""
    workloads = Workloads(going=0)
    scaler(workloads, [], run("over", ended=True), run("going")).once()
    assert workloads.replicas == {"going": 2}
    with pytest.raises(ConfigError, match="no lacking"):
        scaler(workloads, [], run("lacking")).once()


def test_of_those_from_elsewhere_only_who_stays_counts() -> None:
    """Who is lost, has left or is about to, is nobody whom the workload may lack."""
    known = [
        ReplicaView(replica=f"guest-{state}", incarnation=1, state=state) for state in ReplicaState
    ]
    workloads = Workloads(a=0)
    scaler(workloads, [], run("a"), known=known).once()
    assert workloads.replicas == {"a": 1}, "of two that are wanted, one is there"


def test_only_so_many_failures_in_a_row_end_it() -> None:
    """A control plane that is away now and then, for days, is no reason."""
    rounds = 3
    looks = [*([Unreachable("It is away.")] * (FAILURES_MAX - 1)), run("a")] * rounds
    answers, waits = iter([*looks, run("a", ended=True)]), list[float]()

    def answered(_: str) -> RunView:
        answer = next(answers)
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    client: Any = SimpleNamespace(run=answered, replicas=lambda _: [])
    workloads, warned = Workloads(a=2), list[str]()
    Scaler(client, "a", workloads.of, lambda _: None, warned.append).follow(1.0, waits.append)
    assert workloads.replicas == {"a": 0}, "it has ended"
    assert len(warned) == rounds, "each time it is said once"
    assert waits[FAILURES_MAX - 1 :: FAILURES_MAX] == [1.0] * rounds, "then it looks as ever"


def test_runs_that_are_not_seen_to_are_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    warned = list[str]()
    scaler(Workloads(a=2), warned, run("a")).once()
    assert warned == []
    monkeypatch.setattr(watch, "RUNS_LISTED", 1)
    looks = scaler(Workloads(a=2), warned, run("a"))
    looks.once()
    looks.once()
    assert warned == [
        "Of so many runs the newest 1 are seen to; give an older one a scaler of its own."
    ]
