"""A pseudo-gradient is turned towards the momentum, or loses what is against it (HeLoCo)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_proto.codec import Float32
from syncline_proto.merging import DirectionSettings
from syncline_sync.core.direction import EPSILON, FAINT, correct
from syncline_sync.core.radial import Float64
from syncline_sync.core.record import ClosedBy
from syncline_testing.world import World

RULES = DirectionSettings(enabled=True)
EDGES = (0, 3, 40)
seeds = st.integers(0, 2**32 - 1)
mixes = st.floats(-2.0, 2.0)


def pair(seed: int, mix: float, scale: float = 1.0) -> tuple[Float32, Float32]:
    """A pseudo-gradient, and a momentum with a part of it."""
    rng = np.random.default_rng(seed)
    mine, other = rng.standard_normal((2, EDGES[-1]))
    return (scale * mine).astype(np.float32), (mix * mine + other).astype(np.float32)


def cosine(a: Float32, b: Float32) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def by_hand(mine: Float32, its: Float32, rules: DirectionSettings) -> tuple[Float64, float]:
    """The paper's formula for one tensor, in float64."""
    d, m = mine.astype(np.float64), its.astype(np.float64)
    u, v = d / np.linalg.norm(d), m / np.linalg.norm(m)
    c, size = float(u @ v), float(np.linalg.norm(d))
    sure = size / (size + rules.kappa * float(np.linalg.norm(m)) + EPSILON)
    if c >= rules.agree:
        return d, c
    if c < 0:
        return d - min(rules.suppress * -c * sure, rules.suppress_max) * c * size * v, c
    turn = min(rules.rotate * (1 - c) * sure, 1.0)
    x = (1 - turn) * u + turn * v
    return size * x / np.linalg.norm(x), c


BOUNDED = DirectionSettings(enabled=True, agree=1.0, suppress=10.0, rotate=10.0, kappa=0.0)
"""With which the bounds are reached that the paper's own rules stay within."""
other_rules = st.builds(
    DirectionSettings,
    agree=st.floats(0, 1),
    suppress=st.floats(0, 10),
    suppress_max=st.floats(0, 1),
    rotate=st.floats(0, 10),
    kappa=st.floats(0, 10),
)


@given(
    seeds,
    mixes,
    st.floats(0.01, 100),
    st.sampled_from([1.0, 0.25, 8.0]),
    st.sampled_from([RULES, BOUNDED]) | other_rules,
)
def test_it_is_the_papers_formula_tensor_by_tensor(
    seed: int, mix: float, size: float, scale: float, rules: DirectionSettings
) -> None:
    mine, momentum = pair(seed, mix, size)
    parts = [
        by_hand(mine[a:b] * np.float32(scale), momentum[a:b], rules) for a, b in ((0, 3), (3, 40))
    ]
    given_ = mine.copy()
    told = correct(given_, momentum, scale, EDGES, rules)
    expected = np.concatenate([part for part, _ in parts]) / scale
    assert np.allclose(given_, expected, rtol=1e-3, atol=1e-5 * size)
    assert told == pytest.approx(math.fsum(c for _, c in parts) / 2, abs=1e-5)


@given(seeds, mixes)
def test_it_never_points_further_away_and_never_grows(seed: int, mix: float) -> None:
    mine, momentum = pair(seed, mix)
    turned = mine.copy()
    correct(turned, momentum, 1.0, (0, mine.size), RULES)
    assert cosine(turned, momentum) >= cosine(mine, momentum) - 1e-5
    assert np.linalg.norm(turned) <= np.linalg.norm(mine) * (1 + 1e-5)


@given(seeds, st.floats(0.8, 2.0))
def test_what_points_as_the_momentum_does_stays_to_the_bit(seed: int, mix: float) -> None:
    mine, momentum = pair(seed, 3 * mix)
    turned = mine.copy()
    told = correct(turned, momentum, 1.0, (0, mine.size), RULES)
    assert told is not None and told > RULES.agree
    assert np.array_equal(turned, mine)


@pytest.mark.parametrize("nothing", [0.0, np.nan, np.inf])
def test_without_a_direction_nothing_is_turned(nothing: float) -> None:
    mine, momentum = pair(1, -1.0)
    momentum[:3] = nothing
    mine[3:] = nothing
    turned = mine.copy()
    assert correct(turned, momentum, 1.0, EDGES, RULES) is None
    assert np.array_equal(turned, mine, equal_nan=True)


@pytest.mark.parametrize("left", [5e-45, 1e-41, 0.1 * FAINT])
def test_a_momentum_that_has_died_away_turns_nothing(left: float) -> None:
    """Rounds without a gradient leave fp32's least numbers; times 0.9 they round to themselves."""
    mine, momentum = pair(1, -1.0)
    momentum[:3] *= np.float32(left)
    turned = mine.copy()
    told = correct(turned, momentum, 1.0, EDGES, RULES)
    assert np.array_equal(turned[:3], mine[:3])
    assert np.isfinite(turned).all() and not np.array_equal(turned[3:], mine[3:])
    assert told == pytest.approx(cosine(mine[3:], momentum[3:]), abs=1e-5)


@pytest.mark.parametrize(
    ("outer", "is_async", "norm", "scale"),
    [
        ({}, False, 1.0, None),
        ({"direction": {"enabled": True}}, False, 1.0, 0.5),
        ({"direction": {"enabled": True}}, False, math.nan, None),
        ({"direction": {"enabled": True}, "restart_every": 1}, False, 1.0, None),
        ({"direction": {"enabled": True}}, True, 1.0, 1.0),
    ],
)
def test_a_round_says_whether_its_sum_is_turned_and_at_which_length(
    outer: dict[str, object], is_async: bool, norm: float, scale: float | None
) -> None:
    """Of two equal pushes; a momentum that is forgotten turns nothing."""
    rules, window = {"enabled": False}, 2 if is_async else None
    w = World("a", "b", outer=outer, asynchronous=is_async, window=window, penalty=rules)
    w.push("a", norm=norm)
    if not is_async:
        w.push("b", norm=norm)
    closing = w.closes(ClosedBy.PUSH if is_async else ClosedBy.EVERYONE)
    assert closing.direction_scale == scale
