"""By time every group is pushed once in each interval, whatever a replica's steps take."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.core.timed import PROLONGED_MAX, Instant, Publication, Timed
from syncline_proto.v1 import sync_pb2 as pb

GROUPS = st.integers(1, 12)
SECONDS = st.floats(0.1, 1000.0)
STEPS = st.lists(st.floats(0.001, 30.0), min_size=1, max_size=200)
A_HAIR = 1e-4
"""Seconds, on a clock that may have gone for thirty years: in float32 one would be a minute."""


def pushes(timed: Timed, start_s: float, steps: list[float], *, ahead: bool) -> list[float]:
    """When each group was pushed by who is alone and whose rounds take no time."""
    now_s, at_s = start_s, list[float]()
    for step_s in steps:
        now_s += step_s
        at = Instant(now_s, step_s=step_s if ahead else 0.0)
        if (due := timed.due(at)) > 0:
            timed.pushed(due, at)
            at_s += [now_s] * due
    return at_s


@given(GROUPS, SECONDS, STEPS, st.floats(0.0, 1e9))
def test_each_group_comes_once_in_each_interval_whatever_the_steps_take(
    groups: int, seconds: float, steps: list[float], start_s: float
) -> None:
    at_s = pushes(Timed(groups, seconds, 0, start_s), start_s, steps, ahead=False)
    slot_s, longest_s = seconds / groups, max(steps)
    for number, pushed_s in enumerate(at_s):
        due_s = start_s + (number + 1) * slot_s
        assert pushed_s >= due_s - A_HAIR, "never before it is due"
        if longest_s < slot_s:
            assert pushed_s <= due_s + longest_s + A_HAIR, "nor ever later"


@given(GROUPS, SECONDS, STEPS, st.floats(0.0, 1e9))
def test_who_knows_how_long_a_step_takes_pushes_within_one_before_it_is_due(
    groups: int, seconds: float, steps: list[float], start_s: float
) -> None:
    equal = [max(steps)] * len(steps)
    at_s = pushes(Timed(groups, seconds, 0, start_s), start_s, equal, ahead=True)
    slot_s, step_s = seconds / groups, equal[0]
    for number, pushed_s in enumerate(at_s):
        due_s = start_s + (number + 1) * slot_s
        assert pushed_s >= due_s - step_s - A_HAIR
        if step_s < slot_s:
            assert pushed_s <= due_s + A_HAIR, "nobody waits for it"


@given(GROUPS, SECONDS, st.floats(0.0, 1e6), st.floats(0.0, 1e5), st.integers(0, 1000))
def test_nothing_is_due_before_the_first_step(
    groups: int, seconds: float, published_s: float, passed_s: float, min_steps: int
) -> None:
    timed = Timed(groups, seconds, min_steps, 0.0)
    now_s = published_s + passed_s
    for newest in (None, Publication(7, published_s, 50)):
        timed.start_over(now_s, newest)
        assert timed.due(Instant(now_s)) <= 0


@given(GROUPS, SECONDS, st.floats(0.0, 5.0), st.floats(0.0, 1.0))
def test_a_joiner_pushes_when_everybody_does(
    groups: int, seconds: float, joins: float, published_s: float
) -> None:
    newest = Publication(3, published_s, 100)
    first, joiner = Timed(groups, seconds, 0, 0.0), Timed(groups, seconds, 0, 0.0)
    first.start_over(published_s, newest)
    joins_s = published_s + joins * seconds
    joiner.start_over(joins_s, newest)
    step_s = seconds / groups / 7
    now_s = published_s
    for _ in range(7 * groups * 8):
        now_s += step_s
        at = Instant(now_s)
        due = max(0, first.due(at))
        first.pushed(due, at)
        if now_s > joins_s:
            assert max(0, joiner.due(at)) == due or now_s - step_s <= joins_s
            joiner.pushed(max(0, joiner.due(at)), at)


@given(
    SECONDS,
    st.lists(st.floats(0.001, 0.3), min_size=2, max_size=5),
    st.floats(0.0, 0.1),
    st.floats(0.0, 1e9),
)
def test_nobody_drifts_and_nobody_waits_longer_than_a_step_of_its_own(
    seconds: float, speeds: list[float], delay: float, start_s: float
) -> None:
    """Rounds close with the last push; steps are a share of the interval, ``delay`` the network."""
    steps_s = [speed * seconds for speed in speeds]
    alls, free_s = [Timed(1, seconds, 0, start_s) for _ in speeds], start_s
    published_s = start_s
    for revision in range(1, 30):
        ends = list[float]()
        for timed, step_s in zip(alls, steps_s, strict=True):
            now_s = free_s
            while True:
                now_s += step_s
                at = Instant(now_s, step_s=step_s)
                if timed.due(at):
                    timed.pushed(1, at, 0)
                    break
            ends.append(now_s)
            assert published_s + seconds - step_s - A_HAIR <= now_s
            assert now_s <= max(published_s + seconds, free_s + step_s) + A_HAIR
        published_s = max(ends)
        free_s = published_s + delay * seconds
        for timed in alls:
            timed.see(Publication(revision, published_s))


def test_an_interval_begins_with_a_publication_and_with_what_was_pushed_after_it() -> None:
    timed = Timed(2, 10.0, 0, 0.0)
    assert [timed.due(Instant(s)) for s in (4.9, 5.0, 10.0)] == [0, 1, 2]
    timed.pushed(2, Instant(10.0), after_last=0)
    timed.pushed(1, Instant(15.0))
    timed.see(Publication(1, 11.0))
    assert [timed.due(Instant(s)) for s in (16.0, 20.9, 21.0)] == [0, 0, 1], "one was before it"
    timed.see(Publication(1, 11.0))
    assert timed.due(Instant(21.0)) == 1


def test_what_was_due_and_not_pushed_stays_due_but_once() -> None:
    timed = Timed(4, 4.0, 0, 0.0)
    timed.pushed(0, Instant(2.0))
    assert [timed.due(Instant(s)) for s in (2.0, 3.0, 4.0)] == [2, 3, 4]
    timed.pushed(0, Instant(40.0))
    assert timed.due(Instant(40.0)) == 4
    timed.pushed(4, Instant(40.0))
    assert [timed.due(Instant(s)) for s in (40.0, 41.0)] == [0, 1]


@given(GROUPS, SECONDS, SECONDS, st.floats(0.0, 3.0))
def test_another_interval_counts_from_the_last_push(
    groups: int, seconds: float, then: float, intervals: float
) -> None:
    timed, now_s = Timed(groups, seconds, 0, 0.0), intervals * seconds
    timed.pushed(max(0, timed.due(Instant(now_s))), Instant(now_s))
    timed.adopt(then, 0, now_s)
    assert timed.due(Instant(now_s)) <= math.ceil(groups * seconds / then)
    assert timed.due(Instant(now_s + 1.001 * then)) >= 1


def test_who_is_alone_makes_the_least_number_of_steps_itself() -> None:
    timed = Timed(1, 10.0, 20, 0.0)
    assert timed.due(Instant(11.0, steps=19, step_s=0.5)) == 0
    assert timed.due(Instant(11.0, steps=20, step_s=0.5)) == 1
    assert timed.due(Instant(9.0, steps=20)) == 0, "never before the interval is over"
    assert timed.due(Instant(10.0 * PROLONGED_MAX, steps=3)) == 1, "nor ever long after it"


def test_what_the_others_do_meanwhile_is_known_from_the_last_round() -> None:
    timed = Timed(1, 10.0, 100, 0.0)
    timed.see(Publication(1, 0.0))
    timed.pushed(1, Instant(20.0), 0)
    timed.see(Publication(2, 20.0, others=80))  # 4 in a second
    assert timed.due(Instant(39.0, steps=23)) == 0
    assert timed.due(Instant(39.0, steps=24)) == 1


def test_nobody_pushes_without_its_part_however_fast_the_others_were() -> None:
    timed = Timed(2, 10.0, 100, 0.0)
    timed.see(Publication(1, 0.0, others=300, in_time=(60, 300), own=0))  # 30 in a second

    def withholds(now_s: float, steps: int) -> bool:
        assert timed.due(Instant(now_s, steps)) == 2, "what is not the last is due all the same"
        return timed.withholds_last(Instant(now_s, steps))

    assert withholds(10.0, steps=15)
    assert not withholds(10.0, steps=16), "a sixth of all, of whole steps the fewest"
    assert not withholds(10.0 * PROLONGED_MAX, steps=3), "and nobody waits longer"
    timed.pushed(2, Instant(10.0, steps=16), 0)
    assert not timed.withholds_last(Instant(15.1)), "it was pushed"
    timed.start_over(4.0, Publication(2, 0.0, others=300, in_time=(60, 300), own=0))
    assert not withholds(10.0, steps=1), "who begins anew owes nothing"


def test_what_came_late_tells_how_fast_the_others_are_and_nothing_of_parts() -> None:
    pushes = [
        pb.Contribution(replica="a", inner_steps=5, age=1),
        pb.Contribution(replica="b", inner_steps=7),
        pb.Contribution(replica="a", inner_steps=9),
    ]
    told = [Publication.of(3, 2.0, pushes, name) for name in "abc"]
    assert [one.others for one in told] == [7, 14, 21]
    assert [one.own for one in told] == [1, 0, None]
    assert {one.in_time for one in told} == {(7, 9)}


def test_the_forecast_is_for_a_step_more_of_each_of_the_others() -> None:
    timed = Timed(1, 10.0, 100, 0.0)
    timed.see(Publication(1, 0.0, others=30, in_time=(20, 10, 60), own=2))  # 3 in a second
    assert timed.due(Instant(10.0, steps=71)) == 0
    assert timed.due(Instant(10.0, steps=72)) == 1
    timed.adopt(10.0, 80, 10.0)
    withheld = [timed.withholds_last(Instant(10.0, steps=steps)) for steps in (66, 67)]
    assert withheld == [True, False], "of another least total from now on; it owes what it owed"


@pytest.mark.parametrize(
    ("before", "per_second"),
    [
        (None, 8.0),
        (Publication(1, 5.0), 16.0),
        (Publication(0, 0.0), 16.0),
        (Publication(1, -990.0), 2.0),
        (Publication(9, 5.0), 8.0),
    ],
)
def test_how_fast_the_others_are_takes_rounds_that_were_missed_and_pauses_for_what_they_are(
    before: Publication | None, per_second: float
) -> None:
    timed = Timed(1, 10.0, 1000, 0.0)
    if before is not None:
        timed.see(before)
    timed.see(Publication(2, 10.0, others=80))
    steps = 1000 - int(20.0 * per_second)
    assert timed.due(Instant(30.0, steps=steps)) == 1
    assert timed.due(Instant(30.0, steps=steps - 1)) == 0
