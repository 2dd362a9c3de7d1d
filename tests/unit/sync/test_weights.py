"""The weights of a round, to the last digit: exp(-(G - ref) / T) * (n / H)^rho over their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from syncline_proto.merging import PenaltySettings
from syncline_sync.core.detector import Ema, Statistics
from syncline_sync.core.record import ClosedBy, Closing
from syncline_sync.core.weights import EXPONENT_MAX, WEIGHT_MIN, Reference, Scale, scale_of, weigh
from syncline_testing.pure import shares
from syncline_testing.world import World

REPLICAS = ("a", "b", "c", "d")
OPEN: dict[str, Any] = {"z_max": 1e9, "ratio_max": 1e9}
"""Nothing is an anomaly."""


def world(strategy: str = "edit", **penalty: Any) -> World:
    return World(
        *REPLICAS,
        strategy=strategy,
        min_replicas=4,
        sync_every=16,
        penalty=OPEN | penalty,
    )


def one_round(w: World, norms: Sequence[float], steps: Sequence[int] = (16,) * 4) -> Closing:
    for replica, norm, n in zip(REPLICAS, norms, steps, strict=True):
        w.push(replica, norm=norm, inner_steps=n)
    return w.closes(ClosedBy.EVERYONE)


def pooled_mean(norms: Sequence[float], alpha: float) -> float:
    """The bias-corrected average of G itself, in the order of rounds and of replica ids."""
    weights = [alpha * (1 - alpha) ** age for age in reversed(range(len(norms)))]
    return math.fsum(w * g for w, g in zip(weights, norms, strict=True)) / math.fsum(weights)


norms_of_a_round = st.lists(st.floats(0.1, 40.0), min_size=4, max_size=4)
steps_of_a_round = st.lists(st.integers(1, 64), min_size=4, max_size=4)


@given(
    norms_of_a_round,
    st.lists(st.floats(0.1, 400.0), min_size=4, max_size=4),
    steps_of_a_round,
    st.sampled_from([("edit", {}), ("edit", {"kappa": 0.2}), ("edit-paper", {})]),
    st.sampled_from([0.0, 0.5, 2.0]),
)
@example([1.0] * 4, [80.0, 40.0, 41.0, 42.0], [8, 16, 4, 2], ("edit-paper", {}), 0.5)
@example([1.0] * 4, [36.0, 18.0, 17.5, 1.0], [8, 16, 4, 2], ("edit", {}), 0.0)
def test_two_weights_stand_in_the_ratio_that_the_rule_says(
    before: list[float],
    norms: list[float],
    steps: list[int],
    chosen: tuple[str, dict[str, Any]],
    rho: float,
) -> None:
    """w_i / w_j = exp(-(G_i - G_j) / T) (n_i / n_j)^rho, however far the norms are apart."""
    strategy, penalty = chosen
    w = world(strategy, **penalty, step_power=rho)
    one_round(w, before, steps)
    rules = w.settings.penalty
    temperature = 1.0
    if strategy == "edit":
        temperature = penalty.get("kappa", 0.5) * pooled_mean(before, rules.ema)
    parts = shares(one_round(w, norms, steps))
    logs = [rho * math.log(n) - g / temperature for g, n in zip(norms, steps, strict=True)]
    total = math.fsum(math.exp(log - max(logs)) for log in logs)
    for replica, log in zip(REPLICAS, logs, strict=True):
        expected = math.exp(log - max(logs)) / total
        assert parts[replica] == pytest.approx(expected, rel=1e-9, abs=WEIGHT_MIN)
    assert math.fsum(parts.values()) == pytest.approx(1.0, rel=1e-12)


@given(st.permutations([0.5, 0.6, 0.6000001, 3.0]), st.sampled_from(["edit", "edit-paper"]))
def test_a_larger_norm_always_counts_less(norms: list[float], strategy: str) -> None:
    w = world(strategy)
    one_round(w, (1.0, 1.2, 0.9, 1.0))
    parts = shares(one_round(w, norms))
    ranked = [part for _, part in sorted(zip(norms, parts.values(), strict=True))]
    assert ranked == sorted(ranked, reverse=True)
    assert len(set(ranked)) == 4


@pytest.mark.parametrize(
    ("strategy", "rounds_before", "are_equal"),
    [
        ("edit", 0, True),  # nothing is known of norms yet
        ("edit", 1, False),
        ("edit-paper", 0, False),  # by norm, with T fixed
        ("edit-paper", 1, False),
        ("diloco", 0, True),  # no penalty
        ("diloco", 1, True),
        ("local-sgd", 1, True),
    ],
)
def test_weights_are_equal_only_without_penalty_or_before_anything_is_known(
    strategy: str, rounds_before: int, are_equal: bool
) -> None:
    w = world(strategy)
    for _ in range(rounds_before):
        one_round(w, (1.0, 1.0, 1.0, 1.0))
    closing = one_round(w, (1.0, 2.0, 3.0, 4.0))
    parts = set(shares(closing).values())
    assert parts == {0.25} if are_equal else len(parts) == 4
    if are_equal:
        assert closing.effective_sample_size == 4.0


def test_before_anything_is_known_the_inner_steps_count_all_the_same() -> None:
    parts = shares(one_round(world(step_power=1.0), (9.0, 1.0, 1.0, 1.0), (8, 16, 32, 8)))
    assert parts == pytest.approx({"a": 0.125, "b": 0.25, "c": 0.5, "d": 0.125})


def test_the_scale_is_kappa_times_the_mean_of_the_norms_themselves() -> None:
    """Not of x = G / sqrt(n), which the detector compares."""
    learnt = Statistics(pooled=Ema().fed(1.0, 0.5), norms=Ema().fed(8.0, 0.5))
    assert scale_of(learnt, PenaltySettings(kappa=0.25)).temperature == 2.0
    assert scale_of(learnt, PenaltySettings(temperature=3.0)).temperature == 3.0
    assert scale_of(learnt, PenaltySettings(enabled=False, temperature=3.0)).temperature is None
    assert scale_of(Statistics(), PenaltySettings()).temperature is None
    still = Statistics(norms=Ema().fed(0.0, 0.5))
    assert scale_of(still, PenaltySettings()).temperature is None


def test_the_first_push_of_a_round_has_weight_one() -> None:
    first = weigh(Scale(2.0), 5.0, 0.5, 1.0)
    reference = Reference(5.0, math.log(0.5))
    assert (first.value, first.rescale, first.scale) == (1.0, 1.0, Scale(2.0, reference))
    second = weigh(first.scale, 9.0, 2.0, 1.0)
    assert second.value == pytest.approx(math.exp(-2.0) * 4.0)
    assert (second.rescale, second.scale) == (1.0, first.scale)


def test_the_reference_moves_only_when_a_weight_would_leave_the_range() -> None:
    before = Scale(1.0, Reference(40.0, 0.0))
    at = weigh(before, 10.0, 1.0, 0.0)
    assert (at.value, at.rescale, at.scale) == (math.exp(30.0), 1.0, before)
    past = weigh(before, 9.0, 1.0, 1.0)
    assert (past.value, past.rescale) == (1.0, math.exp(-31.0))
    assert past.scale.reference == Reference(9.0, 0.0)


@given(
    norms_of_a_round,
    st.lists(st.integers(1, 1 << 40), min_size=4, max_size=4),
    st.floats(0.0, 2.0),
    st.sampled_from(["edit", "edit-paper", "diloco"]),
)
def test_no_count_of_steps_takes_a_weight_out_of_range(
    norms: list[float], steps: list[int], rho: float, strategy: str
) -> None:
    """What is folded is a weight times values in fp32: past e**30 it could overflow there."""
    w = world(strategy, step_power=rho)
    one_round(w, (1.0, 1.2, 0.9, 1.0))
    closing = one_round(w, norms, steps)
    folded = [c.folded for c in closing.saved.contributions]
    assert max(folded) <= math.exp(EXPONENT_MAX)
    assert max(c.rescale for c in closing.saved.contributions) <= 1.0
    assert math.fsum(shares(closing).values()) == pytest.approx(1.0)


def test_the_effective_sample_size_is_one_over_the_sum_of_squares() -> None:
    w = world("edit-paper")
    closing = one_round(w, (0.0, math.log(2.0), math.log(4.0), math.nan))
    assert list(shares(closing).values()) == pytest.approx([4 / 7, 2 / 7, 1 / 7, 0.0])
    assert closing.effective_sample_size == pytest.approx(49 / 21)
