"""Whatever happens to a run, and in whatever order, it goes on and counts each inner step once.

One state machine over the cores of all three programs: replicas join, leave, die and come back; the
service and the control plane stop at any instant; on each link messages are lost, late, doubled and
out of order. The run may begin with a synchronous phase, and its data may be leased: then the
ledger is what was accepted. The suite tries few schedules of these, the tests that take long some
hundred, and ``make simulate`` two thousand.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from syncline_proto.settings import RunSettings
from syncline_testing.leased_swarm import LeasedSwarm
from syncline_testing.lives import Late
from syncline_testing.ruled import CONTROL, LEASE_S, SERVICE
from syncline_testing.swarm import DEADLINE_S, MODES, STEP_S, Swarm
from syncline_testing.weather import Weather

FEW = 6
MANY = int(os.environ.get("SYNCLINE_SCHEDULES", "75"))
"""Schedules of each mode: in the suite, and of the tests that take long."""

SILENT_S = 60.0
"""In that time a round of each of three groups closes twice, each at its deadline."""

IS_DRAWN = "SYNCLINE_SCHEDULES" in os.environ
"""Anew each time, by ``make simulate``; else they are the same ones every time."""

names = st.sampled_from(["a", "b", "c", "d"])
weathers = st.builds(
    Weather, st.sampled_from([0.01, 0.01, 0.3, 3.0]), st.sampled_from([1, 1, 0, 2])
)
ways = st.fixed_dictionaries(
    {
        "fragment_groups": st.sampled_from([1, 3]),
        "overlap_steps": st.sampled_from([0, 2]),
        "min_replicas": st.integers(1, 2),
        "warmup_steps": st.sampled_from([0, 0, 3, 40]),
    }
)


class SwarmMachine(RuleBasedStateMachine):
    modes, kind = ["barrier"], Swarm

    @initialize(
        data=st.data(),
        way=ways,
        least=st.sampled_from([0, 20]),
        quiet_s=st.sampled_from([0.0, 2.0, 5.0]),
    )
    def begin(self, data: st.DataObject, way: dict[str, int], least: int, quiet_s: float) -> None:
        rules = {**MODES[data.draw(st.sampled_from(self.modes), "mode")], **way}
        if "sync_seconds" in rules:
            rules["min_round_steps"] = least
        self.swarm = self.kind(RunSettings.model_validate(rules))
        self.swarm.register("a")
        self.swarm.register("b")
        self.swarm.run(quiet_s)

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, LEASE_S, DEADLINE_S]))
    def time_passes(self, seconds: float) -> None:
        self.swarm.run(self.swarm.now_s + seconds)

    @rule(name=names, beside=st.booleans())
    def somebody_joins_or_comes_back(self, name: str, beside: bool) -> None:
        self.swarm.register(name, beside=beside)

    @rule(name=names)
    def a_replica_is_killed(self, name: str) -> None:
        if name in self.swarm.replicas:
            self.swarm.replicas[name].stop()

    @rule()
    def everybody_is_killed(self) -> None:
        for replica in self.swarm.replicas.values():
            replica.stop()

    @rule(name=names)
    def a_replica_leaves(self, name: str) -> None:
        if name in self.swarm.replicas:
            self.swarm.replicas[name].leave()

    @rule(name=names, end=st.sampled_from([SERVICE, CONTROL]), to=st.booleans(), weather=weathers)
    def a_line_changes(self, name: str, end: str, to: bool, weather: Weather) -> None:
        self.swarm.weather((name, end) if to else (end, name), weather)

    @rule(
        name=names,
        end=st.sampled_from([SERVICE, SERVICE, CONTROL]),
        to=st.booleans(),
        seconds=st.sampled_from([0.5, 1.0, LEASE_S, DEADLINE_S]),
    )
    def a_line_is_cut(self, name: str, end: str, to: bool, seconds: float) -> None:
        self.swarm.cut((name, end) if to else (end, name), seconds)

    @rule(to=st.booleans(), weather=weathers)
    def the_services_line_changes(self, to: bool, weather: Weather) -> None:
        self.swarm.weather((SERVICE, CONTROL) if to else (CONTROL, SERVICE), weather)

    @rule(to=st.booleans(), seconds=st.sampled_from([1.0, LEASE_S, DEADLINE_S]))
    def the_services_line_is_cut(self, to: bool, seconds: float) -> None:
        self.swarm.cut((SERVICE, CONTROL) if to else (CONTROL, SERVICE), seconds)

    @rule(amid_a_commit=st.booleans())
    def the_service_stops(self, amid_a_commit: bool) -> None:
        if amid_a_commit:
            self.swarm.tear_next_commit()
        else:
            self.swarm.stop_service()

    @rule()
    def the_service_starts(self) -> None:
        self.swarm.start_service()

    @rule()
    def the_service_is_back_at_once(self) -> None:
        self.swarm.stop_service()
        self.swarm.start_service()

    @rule()
    def the_control_plane_stops(self) -> None:
        self.swarm.stop_control()

    @rule()
    def the_control_plane_starts(self) -> None:
        self.swarm.start_control()

    @rule(running=st.booleans())
    def the_run_is_paused_or_goes_on(self, running: bool) -> None:
        self.swarm.pause(running)

    @rule()
    def all_is_well_again(self) -> None:
        """Then who has just come is in it, and whoever lives gets on."""
        swarm = self.swarm
        swarm.heal()
        swarm.register("a")
        swarm.register("b")
        swarm.run(swarm.now_s + 3 * LEASE_S + 2.0)
        living = [one for one in swarm.replicas.values() if one.alive]
        assert {"a", "b"} <= {one.name for one in living}
        before = {one.name: list(one.revisions) for one in living}
        swarm.runs_well(DEADLINE_S)
        for one in living:
            assert one.alive, one.name
            was = before[one.name]
            assert all(r > b for r, b in zip(one.revisions, was, strict=True)), f"{one.name} waits"

    @rule(name=names)
    def one_lives_and_is_silent(self, name: str) -> None:
        """Rounds close at their deadlines where the others are the minimum; else they wait.

        But for the synchronous phase: it goes on with those who are in it and left.
        """
        swarm = self.swarm
        swarm.heal()
        swarm.run(swarm.now_s + 3 * LEASE_S + 2.0)
        if swarm.settings.warmup_steps and not all(core.saved.revision for core in swarm.cores):
            return
        for line in ((name, SERVICE), (SERVICE, name)):
            swarm.cut(line, SILENT_S)
        swarm.run(swarm.now_s + 1.0)  # what was on its way has come
        others = [one for one in swarm.replicas.values() if one.alive and one.name != name]
        before = [len(closings) for closings in swarm.closings]
        swarm.run(swarm.now_s + SILENT_S - 1.0)
        closed = [len(now) - was for now, was in zip(swarm.closings, before, strict=True)]
        if len(others) >= swarm.settings.min_replicas:
            assert min(closed) >= 2, f"rounds go on without {name}: {closed}"
        elif not swarm.settings.asynchronous:  # else whoever is alive counts
            assert max(closed) <= 1, "none has fewer pushes than the minimum"

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        self.swarm.check()


class QuorumSwarmMachine(SwarmMachine):
    """Rounds that close without everyone, and take what comes late."""

    modes = ["quorum"]


class TimedSwarmMachine(SwarmMachine):
    """Rounds by time, some with a least total of steps."""

    modes = ["by time"]


class AsyncSwarmMachine(SwarmMachine):
    """No round waits."""

    modes = ["asynchronous"]


class LeasedSwarmMachine(SwarmMachine):
    """Any of these, on leased data."""

    modes, kind = list(MODES), LeasedSwarm


@pytest.mark.parametrize("schedules", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "machine",
    [
        SwarmMachine,
        QuorumSwarmMachine,
        TimedSwarmMachine,
        AsyncSwarmMachine,
        LeasedSwarmMachine,
    ],
)
@pytest.mark.timeout(1800)
def test_no_schedule_of_misfortunes_stops_a_run_or_counts_a_step_twice(
    machine: type[SwarmMachine], schedules: int
) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=schedules, stateful_step_count=40, deadline=None, derandomize=not IS_DRAWN
        ),
    )


def test_what_a_late_push_named_that_is_lost_for_good_is_in_the_hands_of_who_read_it() -> None:
    """A service forgets it, and its replica is cut off until it is too old."""
    swarm = LeasedSwarm(RunSettings.model_validate(MODES["quorum"]))
    swarm.steps_s["c"] = 3 * STEP_S
    for name in "abc":
        swarm.register(name)
    late: dict[int, Late] = {}
    while not late:
        assert swarm.happens(60.0)
        late = swarm.replicas["c"].late if "c" in swarm.replicas else {}
    swarm.stop_service()
    swarm.start_service()
    for line in (("c", SERVICE), (SERVICE, "c")):
        swarm.cut(line, DEADLINE_S)
    swarm.run(swarm.now_s + 2 * DEADLINE_S)
    assert sum(swarm.replicas["c"].lost.values()), "it was lost"
    swarm.runs_well(DEADLINE_S)
    swarm.check()


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("is_torn", [False, True], ids=["all", "some"])
def test_what_a_step_closed_without_is_in_the_hands_of_who_read_it(
    steps: int, is_torn: bool
) -> None:
    """In all fragments; or in some, where the service goes when one has closed and comes back."""
    rules = {**MODES["barrier"], "min_replicas": 1, "warmup_steps": steps}
    swarm = LeasedSwarm(RunSettings.model_validate(rules))
    swarm.register("a")
    swarm.register("b")
    first, last = swarm.cores[0], swarm.cores[-1]
    while not (first if is_torn else last).saved.gradient_step:
        assert swarm.happens(60.0)
    if is_torn:
        assert not last.saved.gradient_step
        swarm.stop_service()
        swarm.start_service()
    swarm.runs_well(DEADLINE_S)
    swarm.check()
