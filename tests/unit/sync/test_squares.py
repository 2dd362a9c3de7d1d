"""Squares of a vector: the same bit for bit, however often they are asked for on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_sync.core.squares import SQUARES_PIECE as PIECE
from syncline_sync.core.squares import Squares

VALUES = np.random.default_rng(0).standard_normal(3 * PIECE + 77).astype(np.float32)


@given(st.lists(st.integers(0, VALUES.size), max_size=8))
def test_what_is_taken_on_the_way_is_what_is_taken_at_the_end(ends: list[int]) -> None:
    vector, squares, written = np.full(VALUES.size, np.nan, np.float32), Squares(), 0
    for end in sorted(ends):
        vector[written:end] = VALUES[written:end]
        squares.take(vector, end)
        written = end
    vector[written:] = VALUES[written:]
    total = squares.of(vector)
    assert total == Squares().of(VALUES)
    assert total == pytest.approx(math.fsum(VALUES.astype(np.float64) ** 2), rel=1e-12)


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_not_finite_passes_through(size: int, odd: float) -> None:
    values = np.ones(size, np.float32)
    assert Squares().of(values) == size
    values[-1:] = odd
    assert math.isfinite(Squares().of(values)) == (size == 0)
