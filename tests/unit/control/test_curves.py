"""A thinned curve keeps its ends, its order and its shape."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from syncline_control.core.curves import thinned

XS = st.lists(st.integers(0, 1000), max_size=200)


@given(XS, st.integers(2, 40))
def test_few_enough_points_are_kept_first_and_last_among_them(xs: list[int], keep: int) -> None:
    kept = thinned(xs, keep)
    assert kept == sorted(set(kept))
    assert len(kept) == len(xs) if len(xs) <= keep else len(kept) <= keep
    if xs:
        assert kept[0] == 0
        assert kept[-1] == len(xs) - 1


@given(XS, st.integers(2, 40))
def test_what_is_dropped_lies_within_a_grid_step_of_what_is_kept(xs: list[int], keep: int) -> None:
    rising = list(accumulate(xs, max))
    kept = {rising[i] for i in thinned(xs, keep)}
    if rising:
        step = (rising[-1] - rising[0]) / (keep - 1)
        assert all(min(abs(x - other) for other in kept) <= step + 1e-9 for x in rising)


def test_a_curve_thinned_again_and_again_stays_even() -> None:
    xs: list[int] = []
    for x in range(0, 100_000, 10):
        xs.append(x)
        if len(xs) > 100:
            xs = [xs[i] for i in thinned(xs, 50)]
    gaps = [b - a for a, b in zip(xs, xs[1:], strict=False)]
    assert max(gaps) <= 2 * 100_000 / 49


def test_a_curve_that_stands_still_is_thinned_by_number() -> None:
    assert thinned([7] * 101, 3) == [0, 50, 100]
