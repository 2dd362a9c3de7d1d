"""How much data is leased ahead: within its bounds, and never a trickle of calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syncline.core.supply import OUTAGE_S, SHARE, Supply

COUNTS = st.integers(1, 10_000)


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, st.floats(0, 1e6))
def test_what_is_held_stays_within_bounds(
    sequences: int, replicas: int, batch: int, round_: int, held: int, speed: float
) -> None:
    supply = Supply.of(sequences, replicas, batch, round_)
    lacking = supply.lacking(held, speed)
    assert lacking == 0 or held + lacking <= max(batch, sequences // (SHARE * replicas))
    assert lacking == 0 or held + lacking >= batch, "a batch can be made of it"
    assert lacking == 0 or lacking >= held, "half of it is asked for at a time"
    assert supply.lacking(0, speed) > 0


def test_a_large_dataset_outlasts_an_absence_of_the_control_plane() -> None:
    supply = Supply.of(sequences=10**9, replicas=8, batch=32, round_=2048)
    assert supply.lacking(0, per_second=0.0) == 2 * 2048
    assert supply.lacking(0, per_second=500.0) == 500 * OUTAGE_S


def test_by_time_two_rounds_are_held_however_long_they_are() -> None:
    big = {"sequences": 10**9, "replicas": 8, "batch": 32, "round_": 2048}
    assert Supply.of(**big, round_s=600.0).lacking(0, per_second=500.0) == 500 * 2 * 600
    assert Supply.of(**big, round_s=5.0).lacking(0, per_second=500.0) == 500 * OUTAGE_S


def test_a_small_dataset_is_left_for_others() -> None:
    assert Supply.of(sequences=800, replicas=4, batch=8, round_=512).lacking(0, 100.0) == 25
