"""Rounds of several replicas bring the least total of steps that is asked for.

What bounds it is what each owes, and that holds however long their steps take. Forecasts only see
to it that they need not wait for one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from syncline.core.timed import PROLONGED_MAX, parts
from syncline_testing.simulated import SETTINGS, Place, Replica

SECONDS, LEAST, TRAINED_S = 1.0, 50, 200.0
LONGEST_STEP = 4.0
"""How many times its usual time a step takes at most."""


class Uneven(Replica):
    """Its steps take anything, so that what it forecasts is never so."""

    def train(self) -> None:
        self._training = True
        random = self.place.random
        took_s = self.step_s * min(LONGEST_STEP, random.lognormvariate(0.0, 0.7))
        self.place.after(took_s, self.trained)


def place_of(seed: int, overlap: int = 0) -> Place:
    how = {"sync_seconds": SECONDS, "min_round_steps": LEAST, "overlap_steps": overlap}
    return Place(seed, settings=SETTINGS.model_copy(update=how))


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    "steps_s", [(0.1, 0.1), (0.1, 0.13, 0.4), (0.1, 0.1, 0.1, 0.1), (0.07, 0.3)]
)
def test_rounds_bring_the_least_total_and_little_more(
    steps_s: tuple[float, ...], groups: int
) -> None:
    place = place_of(3)
    for number, step_s in enumerate(steps_s):
        Replica(f"r{number}", step_s, place, groups, 0, SECONDS)
    place.run(TRAINED_S)
    totals = [sum(brought.values()) for brought in place.brought[-1]]
    assert min(totals[1:]) >= LEAST, "before the first nobody knows of another"
    settled = totals[4:]
    assert sum(settled) / len(settled) <= LEAST + 2 * len(steps_s), "two steps of each"


@dataclass
class Change:
    """Somebody comes, or is lost."""

    after_s: float
    loses: bool
    step_s: float


changes = st.lists(
    st.builds(Change, st.floats(0.5, 15.0), st.booleans(), st.floats(0.03, 0.3)), max_size=5
)


@settings(max_examples=60, deadline=None)
@example(
    123703,
    [0.034, 0.036, 0.03],
    4,
    0,
    [
        Change(2.374, False, 0.148),
        Change(0.542, False, 0.134),
        Change(1.566, True, 0.1),
        Change(0.566, True, 0.1),
        Change(0.514, True, 0.1),
    ],
)
@example(361415, [0.12], 3, 0, [Change(5.468, False, 0.058), Change(1.945, True, 0.032)])
@given(
    seed=st.integers(0, 10**6),
    steps_s=st.lists(st.floats(0.03, 0.3), min_size=1, max_size=5),
    groups=st.integers(1, 5),
    overlap=st.integers(0, 4),
    changes=changes,
)
def test_a_round_without_anybody_s_loss_brings_the_least_total_however_long_steps_take(
    seed: int, steps_s: list[float], groups: int, overlap: int, changes: list[Change]
) -> None:
    place = place_of(seed, overlap)
    replicas = [
        Uneven(f"r{number}", step_s, place, groups, overlap, SECONDS)
        for number, step_s in enumerate(steps_s)
    ]
    for number, change in enumerate(changes):
        place.run(place.now_s + change.after_s)
        if change.loses and len(replicas) > 1:
            replicas.pop(place.random.randrange(len(replicas))).die()
        else:
            name = f"joiner-{number}"
            replicas.append(Uneven(name, change.step_s, place, groups, overlap, SECONDS))
    place.run(place.now_s + 30.0)
    brought, closed_s = place.brought[-1], [at_s for at_s, _ in place.rounds[-1]]
    slowest_s = LONGEST_STEP * max([*steps_s, *(change.step_s for change in changes)])
    assert len(brought) >= 5
    lasted_s = [end - begin for begin, end in pairwise(closed_s)]
    for (before, after), took_s in zip(pairwise(brought), lasted_s, strict=True):
        owed = dict(zip(before, parts(LEAST, list(before.values())), strict=True))
        assert sum(owed.values()) == LEAST
        if took_s >= PROLONGED_MAX * SECONDS - slowest_s:
            continue  # it goes on no longer, whatever it brings
        for name, steps in after.items():
            assert steps >= owed.get(name, 0)
        missing = sum(owed[name] for name in before.keys() - after.keys())
        assert sum(after.values()) >= LEAST - missing
    # Who comes while a group's round is being published is late with it, which takes a turn; and if
    # the others are lost, nobody pushes the last one before it.
    turn_s = PROLONGED_MAX * SECONDS / groups if changes else 0.0
    longest_s = PROLONGED_MAX * SECONDS + turn_s + (overlap + 2) * slowest_s
    assert max(lasted_s) <= longest_s, "nobody hangs"


@given(st.integers(0, 500), st.lists(st.integers(1, 200), min_size=1, max_size=9))
def test_what_each_owes_sums_to_the_least_total_and_is_no_more_than_it_has_just_made(
    least: int, brought: list[int]
) -> None:
    owed, total = parts(least, brought), sum(brought)
    assert sum(owed) == least
    for steps, part in zip(brought, owed, strict=True):
        assert part >= least * steps // total, "in proportion, but for what is rounded"
        assert part <= steps or least > total
    takes = max(part / steps for steps, part in zip(brought, owed, strict=True))
    for steps, part in zip(brought, owed, strict=True):
        assert (part + 1) / steps >= takes, "no other parts would take less time"


def test_who_made_few_steps_owes_one_less_first() -> None:
    assert parts(50, [3, 25, 25]) == [2, 24, 24]
    assert parts(52, [3, 25, 25]) == [2, 25, 25]
    assert parts(7, []) == [] and parts(7, [0, 0]) == [0, 0]
