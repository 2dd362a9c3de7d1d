"""How near the rounds of several replicas come to the least total of steps that is asked for.

Each forecasts what the others make meanwhile, and their steps vary by a fifth here.
"""

from __future__ import annotations

import pytest

from syncline_testing.simulated import SETTINGS, Place, Replica

SECONDS, LEAST, TRAINED_S = 1.0, 50, 200.0


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    "steps_s", [(0.1, 0.1), (0.1, 0.13, 0.4), (0.1, 0.1, 0.1, 0.1), (0.07, 0.3)]
)
def test_a_round_brings_the_least_total_of_steps_or_a_tenth_less_at_most(
    steps_s: tuple[float, ...], groups: int
) -> None:
    settings = SETTINGS.model_copy(update={"sync_seconds": SECONDS, "min_round_steps": LEAST})
    place = Place(3, settings=settings)
    for number, step_s in enumerate(steps_s):
        Replica(f"r{number}", step_s, place, groups, 0, SECONDS)
    place.run(TRAINED_S)
    totals = place.totals[-1][4:]
    assert all(0.9 * LEAST <= total <= 1.12 * LEAST for total in totals), "it is a forecast"
    assert LEAST <= sum(totals) / len(totals) <= 1.04 * LEAST
