"""A run's life goes by the table, and only live settings change while it goes on."""

from __future__ import annotations

from itertools import product

import pytest

from syncline_control.core.runs import (
    ENDED,
    LIFE,
    Act,
    after,
    check_equal,
    crossed,
    patched,
    told,
    waits_for,
)
from syncline_proto.differing import changes, differences
from syncline_proto.errors import InvalidRequest, RunConflict
from syncline_proto.rest import RunState
from syncline_proto.settings import RunSettings


@pytest.mark.parametrize(("state", "act"), list(product(RunState, Act)))
def test_what_is_not_in_the_table_is_refused(state: RunState, act: Act) -> None:
    if (state, act) in LIFE:
        assert after(state, act, "r") is LIFE[state, act]
    else:
        with pytest.raises(RunConflict, match=f"{state}.*{act}"):
            after(state, act, "r")


@pytest.mark.parametrize("act", list(Act))
def test_asking_twice_is_asking_once(act: Act) -> None:
    once = after(RunState.RUNNING, act, "r")
    assert after(once, act, "r") is once


@pytest.mark.parametrize(("state", "act"), list(product(sorted(ENDED), Act)))
def test_nothing_brings_an_ended_run_back(state: RunState, act: Act) -> None:
    assert LIFE.get((state, act), state) is state


@pytest.mark.parametrize(
    ("act", "budget", "why"),
    [
        (Act.FINISH, 3_000_000, "its token budget of 3,000,000 is committed"),
        (Act.FINISH, None, "a replica said so"),
        (Act.STOP, 3_000_000, "stopped by an operator"),
        (Act.PAUSE, None, "`syncline runs resume my-run` goes on"),
    ],
)
def test_the_event_of_an_act_says_why_or_how_to_go_on(
    act: Act, budget: int | None, why: str
) -> None:
    message = told("my-run", act, budget)
    assert message.startswith("Run my-run ") and why in message


def test_a_live_change_touches_only_what_it_names() -> None:
    old = RunSettings(sync_every=8)
    new = patched(old, {"outer": {"lr": 0.5}, "sync_every": 16})
    assert changes(old, new) == "outer.lr: 0.7 -> 0.5, sync_every: 8 -> 16"


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ({"token_budget": 5}, "settings.token_budget is settled when a run is created"),
        ({"colour": "red"}, "settings.colour is not a setting"),
        ({"outer": {"lr": -1}}, "settings.outer.lr"),
        ({"outer": {"speed": 1}}, "settings.outer.speed"),
        ({"sync_every": None}, "settings.sync_every"),
    ],
)
def test_a_change_that_may_not_be_names_its_key(patch: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        patched(RunSettings(), patch)


def test_all_settings_that_differ_are_named_with_whose_they_are_and_whether_they_stay() -> None:
    has = RunSettings(strategy="diloco", sync_every=8, token_budget=100)
    check_equal("r", RunState.RUNNING, has, has)
    for asked, said in (
        (
            {"sync_every": 16},
            "Run r exists with other settings, which stay (token_budget: the run has 100, here "
            "none, the default); use its settings, or another name; `syncline runs set r "
            "KEY=VALUE` changes the rest (sync_every: the run has 8, here 16).",
        ),
        (
            {"sync_every": 8, "token_budget": 9},
            "Run r exists with other settings, which stay (token_budget: the run has 100, here "
            "9); use its settings, or another name.",
        ),
        (
            {"sync_every": 16, "token_budget": 100},
            "Run r exists with other settings (sync_every: the run has 8, here 16); use its "
            "settings, change them with `syncline runs set r KEY=VALUE`, or use another name.",
        ),
    ):
        with pytest.raises(RunConflict) as error:
            wanted = RunSettings.model_validate({"strategy": "diloco", **asked})
            check_equal("r", RunState.RUNNING, has, wanted)
        assert error.value.message == said


def test_of_a_run_that_has_ended_that_is_what_is_said_first() -> None:
    has = RunSettings(sync_every=8, token_budget=100)
    check_equal("r", RunState.FINISHED, has, has)
    with pytest.raises(RunConflict) as error:
        check_equal("r", RunState.FINISHED, has, RunSettings(sync_every=16))
    assert error.value.message == (
        "Run r is finished, and has other settings (token_budget: the run has 100, here none, the "
        "default; sync_every: the run has 8, here 16); start another run."
    )


def test_differences_see_missing_keys_and_shorten_long_values() -> None:
    assert list(differences({"a": 1}, {})) == [("a", "1", "none")]
    ((_, old, _),) = differences({"a": "x" * 100}, {"a": "y"})
    assert len(old) == 60


@pytest.mark.parametrize(
    ("state", "alive", "needs"),
    [
        (RunState.RUNNING, 0, "replicas"),
        (RunState.RUNNING, 2, "replicas"),
        (RunState.RUNNING, 3, None),
        (RunState.PAUSED, 0, "resume"),
        (RunState.STOPPED, 0, None),
    ],
)
def test_a_run_with_fewer_than_its_minimum_waits(
    state: RunState, alive: int, needs: str | None
) -> None:
    assert waits_for(state, alive, 3) == needs


def test_what_crosses_the_minimum_is_told_once() -> None:
    count, told_of = 0, list[str]()
    for change in (1, 1, 1, 1, -1, -1, -1, 1, 1):
        event = crossed("r", RunState.RUNNING, count, count + change, 3)
        count += change
        told_of += [event[0]] if event else []
    assert told_of == ["run.goes_on", "run.waits", "run.goes_on"]
    assert crossed("r", RunState.FINISHED, 3, 2, 3) is None, "nobody waits in what is over"
    assert crossed("r", RunState.RUNNING, 1, 0, 1) is None, "nobody is left to wait"
