"""Radial-directional averaging: equal pushes, orthogonal ones, and those that cancel out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from syncline_proto.codec import Float32, encode
from syncline_proto.merging import OuterSettings
from syncline_proto.spans import Extent
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.merge import Payload
from syncline_sync.core.radial import CANCELLED, SHORT, Radii, is_radial
from syncline_sync.core.record import Kind
from syncline_testing.pure import payload_of

EDGES = (0, 7, 8, 40)


def averaged(
    pushes: list[Float32], weights: list[float], edges: tuple[int, ...] = EDGES
) -> Float32:
    """What the outer step is given, over the sum of the weights."""
    sum_, radii = np.full(edges[-1], np.nan, np.float32), Radii.none(edges)
    for i, (push, weight) in enumerate(zip(pushes, weights, strict=True)):
        radii.fold(sum_, [payload_of(push)], weight, is_first=i == 0)
    radii.lengthen(sum_)
    return sum_ / np.float32(sum(weights))


def by_hand(pushes: list[Float32], weights: list[float]) -> Float32:
    """The paper's formula, in float64."""
    out = np.zeros(EDGES[-1])
    for a, b in pairwise(EDGES):
        parts = [push[a:b].astype(np.float64) for push in pushes]
        norms = [np.linalg.norm(part) for part in parts]
        u = sum(w * part / n for w, part, n in zip(weights, parts, norms, strict=True))
        length = np.dot(weights, norms) / sum(weights)
        out[a:b] = length * u / np.linalg.norm(u)
    return out.astype(np.float32)


def push_of(seed: int, scale: float = 1.0) -> Float32:
    return (scale * np.random.default_rng(seed).standard_normal(EDGES[-1])).astype(np.float32)


seeds = st.integers(0, 2**32 - 1)
weights_of = st.floats(0.01, 100)


@given(st.lists(st.tuples(seeds, weights_of, st.floats(0.1, 10)), min_size=1, max_size=6))
def test_it_is_the_papers_formula_tensor_by_tensor(rows: list[tuple[int, float, float]]) -> None:
    pushes = [push_of(seed, scale) for seed, _, scale in rows]
    weights = [weight for _, weight, _ in rows]
    # Of one element the directions may cancel out, which the formula has no word for.
    one = sum(np.sign(p[7]) * w for p, w in zip(pushes, weights, strict=True))
    assume(abs(one) > 0.02 * sum(weights))
    expected = by_hand(pushes, weights)
    assert np.allclose(averaged(pushes, weights), expected, rtol=1e-4, atol=1e-5)


@given(seeds, st.lists(weights_of, min_size=1, max_size=5))
def test_equal_pushes_are_left_as_they_are(seed: int, weights: list[float]) -> None:
    push = push_of(seed)
    assert np.allclose(averaged([push] * len(weights), weights), push, rtol=1e-5)


def test_the_mean_of_orthonormal_pushes_is_as_long_as_they_are() -> None:
    pushes = list(np.eye(8, dtype=np.float32))
    assert np.isclose(np.linalg.norm(averaged(pushes, [1.0] * 8, (0, 8))), 1.0)
    assert np.isclose(np.linalg.norm(np.mean(pushes, axis=0)), 8**-0.5)


@given(seeds, st.floats(0.1, 10), weights_of)
def test_of_directions_that_cancel_out_a_short_tensor_has_the_mean_and_a_long_one_nothing(
    seed: int, longer: float, weight: float
) -> None:
    push = push_of(seed)
    other = -push * np.float32(longer)
    result = averaged([push, other], [weight, weight])
    assert EDGES[2] <= SHORT < EDGES[3] - EDGES[2]
    short = slice(EDGES[0], EDGES[2])
    size = np.linalg.norm(push) * (1 + longer)
    assert np.allclose(result[short], ((push + other) / 2)[short], rtol=0, atol=1e-4 * size)
    assert np.linalg.norm(result[EDGES[2] :]) <= 1e-4 * size


@given(st.floats(0.0, 2 * CANCELLED), st.floats(0.1, 10))
def test_what_nearly_cancels_lies_between_the_mean_and_the_papers_formula(
    more: float, longer: float
) -> None:
    """Of one element: two pushes against each other, one of which has a little more weight."""
    pushes = [np.ones(1, np.float32), np.full(1, -longer, np.float32)]
    weights = [1.0 + more, 1.0 - more]
    mean = float(np.average(pushes, axis=0, weights=weights)[0])
    length = (weights[0] + weights[1] * longer) / 2
    share = min(1.0, more / CANCELLED)
    result = float(averaged(pushes, weights, (0, 1))[0])
    assert result == pytest.approx(share * length + (1 - share) * mean, abs=1e-3 * (1 + longer))


def test_a_tensor_of_zeros_has_no_direction_and_counts_as_short() -> None:
    push, other = push_of(1), push_of(1)
    other[:7] = 0.0
    result = averaged([push, other], [1.0, 1.0])
    assert np.allclose(result[:7], push[:7] / 2, rtol=1e-5)
    assert np.allclose(result[7:], push[7:], rtol=1e-5)
    assert not averaged([np.zeros(EDGES[-1], np.float32)], [1.0]).any()


@pytest.mark.parametrize("faint", [1e-45, 1e-41])
@pytest.mark.parametrize("weight", [1.0, 1e13])
def test_a_tensor_too_short_for_fp32_counts_as_zeros(faint: float, weight: float) -> None:
    push, other = push_of(1), push_of(2)
    other[:7] = 0.0
    zeros = other.copy()
    other[3] = faint
    assert other[3] > 0
    assert np.array_equal(
        averaged([push, other], [1.0, weight]), averaged([push, zeros], [1.0, weight])
    )


@given(seeds, st.floats(1e-6, 1.0))
def test_what_is_rescaled_counts_as_if_it_had_come_with_less(seed: int, rescale: float) -> None:
    first, second = push_of(seed), push_of(seed + 1)
    # Of one element the directions may cancel out, and what is left is rounding.
    assume(first[7] * second[7] > 0 or abs(2.0 * rescale - 1.0) > 0.02)
    sum_, radii = np.empty(EDGES[-1], np.float32), Radii.none(EDGES)
    radii.fold(sum_, [payload_of(first)], 2.0, is_first=True)
    radii.fold(sum_, [payload_of(second)], 1.0, rescale)
    radii.lengthen(sum_)
    expected = averaged([first, second], [2.0 * rescale, 1.0])
    result = sum_ / np.float32(2.0 * rescale + 1.0)
    assert np.allclose(result, expected, rtol=1e-4, atol=1e-6)


def test_the_mean_of_what_cancels_out_is_rescaled_too() -> None:
    sum_, radii = np.empty(1, np.float32), Radii.none((0, 1))
    radii.fold(sum_, [payload_of(np.full(1, 1.0, np.float32))], 2.0, is_first=True)
    radii.fold(sum_, [payload_of(np.full(1, -3.0, np.float32))], 1.0, 0.5)
    radii.lengthen(sum_)
    assert sum_ / 2.0 == pytest.approx(-1.0)


def test_a_shard_may_end_within_a_tensor_and_hold_several() -> None:
    push = push_of(3)
    spans = ([[30, 10], [0, 3]], [[3, 27]])
    payloads = []
    for mine in spans:
        flat = np.concatenate([push[at : at + n] for at, n in mine])
        where = Extent.of(np.array(mine, np.int64))
        payloads.append(Payload(pb.CODEC_FP32, (bytes(encode(flat, pb.CODEC_FP32)),), where))
    sum_, radii = np.empty(EDGES[-1], np.float32), Radii.none(EDGES)
    radii.fold(sum_, payloads, 1.0, is_first=True)
    radii.lengthen(sum_)
    assert np.allclose(sum_, push, rtol=1e-5)


def test_only_progress_outside_embeddings_is_averaged_so() -> None:
    radial, mean = OuterSettings(average="radial"), OuterSettings(average="mean")
    assert is_radial(radial, "layers.0", Kind.PSEUDO_GRADIENT)
    assert not is_radial(radial, "embeddings", Kind.PSEUDO_GRADIENT)
    assert not is_radial(radial, "layers.0", Kind.GRADIENT)
    assert not is_radial(mean, "layers.0", Kind.PSEUDO_GRADIENT)
