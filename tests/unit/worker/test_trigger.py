"""When a replica pushes: by its steps or by its clock, and never by what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from syncline import trigger
from syncline.core.timed import Publication
from syncline.rounds import Rounds
from syncline.tally import Tally
from syncline.trigger import StepTime, Trigger, fewer
from syncline_proto.settings import RunSettings


@dataclass
class FakeRounds:
    """What a trigger asks of them."""

    tally: Tally = field(default_factory=Tally)
    fragments: range = range(4)
    newest: Publication | None = None
    pushed_at: int = 0
    behind: tuple[list[int], ...] = ()

    def before_last(self, groups: int) -> int:
        return min(groups, 1)

    def of_interval(self, groups: Sequence[list[int]]) -> tuple[int, int | None]:
        its = [group for group in groups if group not in self.behind]
        last = [self.fragments[-1] in group for group in its]
        return len(its), last[::-1].index(True) if any(last) else None

    @property
    def steps_held(self) -> int:
        return self.tally.inner_step - self.pushed_at


class Bench:
    """A trigger, its rounds, and a clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.now_s, self.rounds = 1000.0, FakeRounds()
        monkeypatch.setattr(trigger.time, "monotonic", lambda: self.now_s)
        self.settings = RunSettings.model_validate(settings)
        self.trigger = Trigger(cast(Rounds, self.rounds), self.settings)

    def step(self, took_s: float = 1.0, waited_s: float = 0.0) -> int:
        """Make an inner step; what is due after it."""
        self.now_s += took_s + waited_s
        self.rounds.tally.inner_step += 1
        self.rounds.tally.exposed_s += waited_s
        return self.trigger.due()

    def steps(self, count: int) -> list[int]:
        """What is due after each of so many steps, if that is pushed."""
        found = list[int]()
        for _ in range(count):
            found.append(due := self.step())
            if due:
                self.push(due)
        return found

    def push(self, due: int, *groups: list[int]) -> None:
        """Push these groups; none given: the one that all fragments are in."""
        self.trigger.pushed(groups or [list(self.rounds.fragments)], due)
        self.rounds.pushed_at = self.rounds.tally.inner_step


def test_by_steps_nothing_depends_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, sync_every=3)
    assert not bench.trigger.is_by_time
    bench.now_s += 1e6
    assert bench.steps(6) == [0, 0, 1, 0, 0, 1]


def test_by_time_a_push_goes_out_before_the_step_that_would_be_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, sync_seconds=4.5)
    assert bench.trigger.is_by_time
    assert bench.steps(4) == [0, 0, 0, 1]
    bench.rounds.newest = Publication(1, bench.now_s)
    assert [bench.step(2.0) for _ in range(2)] == [0, 1]


def test_groups_are_spread_over_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, sync_seconds=8.0, fragment_groups=100)
    assert sum(bench.steps(8)) == 4, "each fragment alone, once"


def test_what_is_pushed_after_the_last_group_is_of_the_interval_that_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, sync_seconds=40.0, fragment_groups=2)
    bench.now_s += 41.0
    bench.push(bench.step(), [3], [0])
    bench.rounds.newest = Publication(1, bench.now_s)
    assert [bench.step(took_s) for took_s in (20.0, 19.0, 1.0)] == [0, 1, 1]


def test_a_new_interval_is_taken_up_and_so_are_steps_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, sync_every=2)
    bench.rounds.newest = Publication(1, bench.now_s)
    bench.step()
    bench.trigger.adopt(bench.settings.model_copy(update={"sync_seconds": 3.0}))
    assert bench.steps(2) == [0, 1]
    bench.rounds.newest = Publication(2, bench.now_s)
    bench.trigger.adopt(bench.settings.model_copy(update={"sync_seconds": 5.0}))
    assert bench.steps(5)[:4] == [0, 0, 0, 1]
    bench.trigger.adopt(bench.settings)
    assert not bench.trigger.is_by_time
    assert bench.steps(4) == [0, 1, 0, 1]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_is_slow_makes_fewer_steps_from_its_last_push_on(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    bench = Bench(monkeypatch, sync_every=8, asynchronous=asynchronous)
    assert bench.steps(8) == [0] * 7 + [1]
    bench.steps(2)
    bench.trigger.ask(0.5)
    assert bench.steps(6) == [0, 1, 0, 0, 0, 1]
    bench.trigger.ask(0.01)
    assert bench.steps(2) == [1, 1], "one step at least"
    bench.trigger.ask(1.0)
    assert bench.steps(8) == [0] * 7 + [1]
    bench.trigger.ask(0.5)
    bench.trigger.adopt(bench.settings.model_copy(update={"sync_every": 4}))
    assert bench.steps(4) == [0, 1, 0, 1], "a share of whatever a round has"


def test_no_push_comes_before_the_last_one_s_round_is_merged() -> None:
    assert fewer(RunSettings(sync_every=8, overlap_steps=6), 0.25) == 6
    assert fewer(RunSettings(sync_every=8, overlap_steps=8), 0.25) == 8
    assert fewer(RunSettings(sync_every=8), 0.25) == 2


def test_by_time_nobody_makes_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, sync_seconds=4.5)
    bench.trigger.ask(0.25)
    assert bench.steps(4) == [0, 0, 0, 1]


def test_the_least_total_counts_steps_that_no_push_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, sync_seconds=3.0, min_round_steps=6)
    assert bench.steps(7) == [0, 0, 0, 0, 0, 1, 0]
    bench.rounds.newest = Publication(1, bench.now_s - 1.0, others=9)  # 3 in a second
    assert bench.steps(1) == [1], "one of ours before, and one since"


def test_what_only_catches_up_is_pushed_beside_what_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, sync_seconds=40.0, fragment_groups=2)
    bench.rounds.newest = Publication(1, bench.now_s)
    bench.rounds.behind = ([1],)
    bench.now_s += 40.0
    assert bench.trigger.due() == 2
    bench.push(2, [1], [0, 2])
    assert bench.trigger.due() == 1, "the last one's turn has not come yet"
    bench.push(1, [1, 3])
    assert bench.trigger.due() == 0


def test_who_owes_steps_pushes_what_comes_before_the_last_fragment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, sync_seconds=4.0, min_round_steps=100, fragment_groups=4)
    bench.rounds.newest = Publication(1, bench.now_s, 300, in_time=(7, 300), own=0)
    bench.now_s += 4.0
    assert [bench.step(0.01) for _ in range(2)] == [1, 4], "two of a hundred are its part"


def test_nothing_is_due_of_what_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in ({"sync_every": 3}, {"sync_seconds": 3.0}):
        bench = Bench(monkeypatch, **settings)
        bench.step()
        bench.step()
        bench.now_s += 100.0
        bench.rounds.newest = Publication(4, bench.now_s - 50.0)
        bench.trigger.start_over()
        assert bench.trigger.due() == 0


def test_a_step_takes_as_long_as_the_shorter_of_the_last_two_and_no_wait_counts() -> None:
    tally, now_s = Tally(), 5.0
    step_time = StepTime(tally)
    assert step_time.seconds(now_s) == 0.0
    found = list[float]()
    for took_s, waited_s in ((60.0, 0.0), (1.0, 30.0), (1.5, 0.0), (45.0, 2.0), (1.25, 0.0)):
        now_s += took_s + waited_s
        tally.exposed_s, tally.inner_step = tally.exposed_s + waited_s, tally.inner_step + 1
        found.append(step_time.seconds(now_s))
        assert step_time.seconds(now_s + 99.0) == found[-1], "it is told once a step"
    assert found == [0.0, 1.0, 1.0, 1.5, 1.25]


def test_a_pause_between_two_steps_is_no_step() -> None:
    tally = Tally()
    step_time = StepTime(tally)
    step_time.seconds(0.0)
    for step in range(1, 4):
        tally.inner_step, tally.paused_s = step, 100.0 * step
        assert step_time.seconds(101.0 * step) == (1.0 if step > 1 else 0.0)


@pytest.mark.parametrize("before", [{"sync_every": 10**6}, {"sync_seconds": 86400.0}])
@pytest.mark.parametrize("after", [{"sync_every": 8}, {"sync_seconds": 8.0}])
def test_an_interval_that_was_far_too_long_is_over_once_that_is_mended(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, Any], after: dict[str, Any]
) -> None:
    bench = Bench(monkeypatch, **before)
    bench.rounds.newest = Publication(1, bench.now_s)
    mended = RunSettings.model_validate(after)
    due = list[int]()
    for _ in range(9):
        assert bench.step() == 0
        due.append(bench.trigger.due_by(mended))
        assert bench.trigger.due_by(bench.settings) == 0, "what stays as it is brings nothing on"
    assert due[:6] == [0] * 6 and due[8] == 1
    bench.push(1)
    bench.rounds.newest = Publication(2, bench.now_s)
    bench.trigger.adopt(mended)
    assert sum(bench.steps(6)) == 0 and sum(bench.steps(3)) == 1, "the next is as long as asked"
