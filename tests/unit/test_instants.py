"""Whatever happens to a run, and at whichever instant of a round: it goes on, and counts once.

``syncline_testing/instants.py`` takes one round of the cores of all three programs apart, and lets
each misfortune happen between each two of its events. The suite takes a few of these instants; the
tests that take long all for joins and leaves, else every eleventh; and ``make simulate`` all.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from syncline_proto.settings import RunSettings
from syncline_testing.instants import BEFORE, MISFORTUNES, Round
from syncline_testing.swarm import MODES

EVERY = 1 if "SYNCLINE_SCHEDULES" in os.environ else 11
"""So many events further is the next instant that is tried, of those that take long."""
MEMBERSHIP = ("joins", "joins, and is slow", "leaves")
"""What is tried at every instant there."""
WAYS: Mapping[str, Mapping[str, int]] = {
    "at once": {},
    "streamed": {"fragment_groups": 3, "overlap_steps": 2, "min_replicas": 2},
}
PHASES = {"a step of it": {"warmup_steps": 2 * BEFORE}, "its end": {"warmup_steps": BEFORE}}
"""Settings under which the round that is taken apart is of the synchronous phase."""


def _at_every_instant(
    settings: Mapping[str, Any], every: int, at_each: Collection[str] = ()
) -> None:
    """``at_each``: misfortunes that are tried at each instant, whatever ``every`` is."""
    round_ = Round(RunSettings.model_validate(settings))
    assert len(round_.instants) >= 20
    for what, misfortune in MISFORTUNES.items():
        for instant in round_.instants[:: 1 if what in at_each else every]:
            try:
                round_.tried(misfortune, instant)
            except BaseException as error:
                error.add_note(f"{what}, after event {instant} of {round_.instants}")
                raise


@pytest.mark.parametrize("mode", MODES)
def test_at_a_few_instants_of_a_round_nothing_stops_a_run_or_counts_twice(mode: str) -> None:
    _at_every_instant({**MODES[mode], **WAYS["streamed"]}, 50)


def test_at_a_few_instants_of_the_synchronous_phases_end_neither() -> None:
    _at_every_instant({**MODES["barrier"], **PHASES["its end"]}, 5)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("phase", PHASES)
def test_at_no_instant_of_the_synchronous_phase_neither(phase: str) -> None:
    _at_every_instant({**MODES["barrier"], **PHASES[phase]}, 1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_at_no_instant_of_a_round_does_anything_stop_a_run_or_count_twice(
    mode: str, way: str
) -> None:
    _at_every_instant({**MODES[mode], **WAYS[way]}, EVERY, MEMBERSHIP)
