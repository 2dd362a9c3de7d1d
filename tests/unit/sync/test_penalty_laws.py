"""The penalty's laws, for any norms and any order (EDiT, arXiv 2412.07210)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline_proto.codec import square_sum
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.detector import Statistics
from syncline_sync.core.weights import WEIGHT_MIN
from syncline_testing.pure import PureFragment, shares

SIZE = 16
ROUNDS = 12
REPLICAS = ("a", "b", "c", "d")
EDIT = RunSettings(min_replicas=4)
PAPER = RunSettings.model_validate({"strategy": "edit-paper", "min_replicas": 4})

norms = st.floats(0.5, 2.0)
seeds = st.integers(0, 2**32 - 1)


def of_norm(norm: float, rng: np.random.Generator) -> np.ndarray:
    direction = rng.standard_normal(SIZE)
    return (norm * direction / np.linalg.norm(direction)).astype(np.float32)


def settled(seed: int, run: RunSettings = EDIT) -> tuple[PureFragment, np.random.Generator]:
    """A fragment whose detector has seen ROUNDS ordinary rounds (norms of 0.8 to 1.2)."""
    rng = np.random.default_rng(seed)
    fragment = PureFragment(run, np.ones(SIZE), dict.fromkeys(REPLICAS, 1))
    for _ in range(ROUNDS):
        fragment.round({r: of_norm(rng.uniform(0.8, 1.2), rng) for r in REPLICAS})
    return fragment, rng


@given(seeds, st.sampled_from(REPLICAS), st.permutations(REPLICAS))
@settings(max_examples=30, deadline=None)
def test_one_replica_times_1000_is_excluded_every_time(
    seed: int, culprit: str, order: list[str]
) -> None:
    """The others' weights sum to 1; statistics are those of a round without it."""
    fragment, rng = settled(seed)
    for _ in range(2):
        before = fragment.core.saved.statistics
        pushes = {r: of_norm(rng.uniform(0.8, 1.2), rng) for r in REPLICAS}
        pushes[culprit] = pushes[culprit] * np.float32(1000.0)
        closing = fragment.round(pushes, order)
        verdicts = {c.replica: c.verdict for c in closing.saved.contributions}
        assert verdicts[culprit] == pb.VERDICT_ANOMALOUS
        assert shares(closing)[culprit] == 0.0
        assert math.isclose(sum(shares(closing).values()), 1.0, rel_tol=1e-12)
        after = fragment.core.saved.statistics
        assert after.pooled.count == before.pooled.count + 3
        assert after.pooled.mean < 1.3
        assert after.of(culprit).ema == before.of(culprit).ema


@given(seeds, st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, SIZE - 1))
@settings(max_examples=30, deadline=None)
def test_what_is_not_finite_leaves_no_trace_from_the_first_round_on(
    seed: int, poison: float, where: int
) -> None:
    rng = np.random.default_rng(seed)
    run = RunSettings.model_validate({"strategy": "local-sgd", "min_replicas": 4})
    for chosen in (EDIT, PAPER, run):
        fragment = PureFragment(chosen, np.ones(SIZE), dict.fromkeys(REPLICAS, 1))
        twin = PureFragment(chosen, np.ones(SIZE), dict.fromkeys(REPLICAS, 1))
        pushes = {r: of_norm(1.0, rng) for r in REPLICAS}
        clean = {r: pushes[r] for r in REPLICAS if r != "b"}
        pushes["b"] = pushes["b"].copy()
        pushes["b"][where] = poison
        closing = fragment.round(pushes)
        twin.core.settings = twin.core.settings.model_copy(update={"min_replicas": 3})
        twin.round(clean)
        assert shares(closing)["b"] == 0.0
        assert np.array_equal(fragment.parameters, twin.parameters)
        assert np.array_equal(fragment.momentum, twin.momentum)
        assert "b" not in fragment.core.saved.statistics.replicas


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_all_excluded_means_parameters_and_momentum_stay_and_the_revision_moves(seed: int) -> None:
    fragment, _ = settled(seed)
    parameters, momentum = fragment.parameters.copy(), fragment.momentum.copy()
    revision = fragment.core.saved.revision
    closing = fragment.round({r: np.full(SIZE, np.nan) for r in REPLICAS})
    assert closing.saved.revision == revision + 1
    assert np.array_equal(fragment.parameters, parameters)
    assert np.array_equal(fragment.momentum, momentum)


@given(
    seeds,
    st.lists(st.floats(0.01, 500.0), min_size=4, max_size=4, unique=True),
    st.permutations(REPLICAS),
    st.sampled_from([EDIT, PAPER]),
)
@settings(max_examples=60, deadline=None)
def test_weights_fall_with_the_norm_whatever_the_order(
    seed: int, drawn: list[float], order: list[str], run: RunSettings
) -> None:
    rng = np.random.default_rng(seed)
    free = run.model_copy(
        update={"penalty": run.penalty.model_copy(update={"ratio_max": 1e9, "z_max": 1e9})}
    )
    pushes = {r: of_norm(n, rng) for r, n in zip(REPLICAS, drawn, strict=True)}
    found = []
    norm = {r: square_sum(pushes[r]) for r in REPLICAS}
    for arrival in (list(REPLICAS), order):
        fragment = PureFragment(free, np.ones(SIZE), dict.fromkeys(REPLICAS, 1))
        fragment.round({r: of_norm(1.0, np.random.default_rng(5)) for r in REPLICAS})
        found.append((shares(fragment.round(pushes, arrival)), fragment.parameters))
    (one, values), (other, values_too) = found
    assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    ranked = [one[r] for r in sorted(REPLICAS, key=norm.__getitem__)]
    assert all(x >= y for x, y in zip(ranked, ranked[1:], strict=False))
    assert math.isclose(sum(ranked), 1.0, rel_tol=1e-12)
    np.testing.assert_allclose(values, values_too, rtol=1e-4, atol=1e-5)


@given(seeds, st.floats(3.0, 50.0))
@settings(max_examples=20, deadline=None)
def test_a_lasting_shift_of_all_norms_locks_nobody_out(seed: int, factor: float) -> None:
    fragment, rng = settled(seed)
    accepted = []
    for _ in range(5):
        closing = fragment.round(
            {r: of_norm(factor * rng.uniform(0.8, 1.2), rng) for r in REPLICAS}
        )
        accepted.append(sum(c.verdict == pb.VERDICT_ACCEPTED for c in closing.saved.contributions))
    assert accepted[-1] == len(REPLICAS)


def test_a_lasting_threefold_norm_of_one_replica_is_taken_in_after_three_rounds() -> None:
    fragment, rng = settled(1)
    verdicts = []
    for _ in range(5):
        pushes = {r: of_norm(1.0, rng) for r in REPLICAS}
        pushes["d"] *= np.float32(3.0)
        closing = fragment.round(pushes)
        verdicts.append(closing.saved.contributions[-1].verdict == pb.VERDICT_ACCEPTED)
    assert verdicts == [False, False, False, True, True]


def test_a_thousandfold_norm_is_never_taken_in() -> None:
    fragment, rng = settled(1)
    for _ in range(20):
        pushes = {r: of_norm(1.0, rng) for r in REPLICAS}
        pushes["d"] *= np.float32(1000.0)
        closing = fragment.round(pushes)
        assert closing.saved.contributions[-1].verdict == pb.VERDICT_ANOMALOUS


def test_a_joiner_is_judged_by_the_pooled_norms() -> None:
    fragment, rng = settled(2)
    fragment.members = {**fragment.members, "e": 1}
    fragment.core.adopt(0.0, fragment.members, EDIT, True)
    assert fragment.push("e", of_norm(8.0, rng)).verdict == pb.VERDICT_ANOMALOUS
    assert fragment.core.saved.statistics.of("e").ema == fragment.core.saved.statistics.pooled


def test_equal_weights_without_penalty_and_statistics() -> None:
    rng = np.random.default_rng(0)
    diloco = RunSettings.model_validate({"strategy": "diloco", "min_replicas": 4})
    for run in (diloco, EDIT):
        fragment = PureFragment(run, np.ones(SIZE), dict.fromkeys(REPLICAS, 1))
        closing = fragment.round(
            {r: of_norm(n, rng) for r, n in zip(REPLICAS, (1, 2, 3, 4), strict=True)}
        )
        assert set(shares(closing).values()) == {0.25}
        assert closing.effective_sample_size == pytest.approx(4.0)


@given(st.lists(st.floats(0.9, 1.1), min_size=40, max_size=40), st.integers(0, 3))
def test_statistics_do_not_depend_on_the_order_of_arrival(drawn: list[float], turn: int) -> None:
    order = REPLICAS[turn:] + REPLICAS[:turn]
    found: list[Statistics] = []
    for arrival in (REPLICAS, order):
        fragment = PureFragment(EDIT, np.ones(SIZE), dict.fromkeys(REPLICAS, 1))
        for i in range(0, 40, 4):
            pushes = {
                r: of_norm(n, np.random.default_rng(7))
                for r, n in zip(REPLICAS, drawn[i : i + 4], strict=True)
            }
            fragment.round(pushes, arrival)
        found.append(fragment.core.saved.statistics)
    assert found[0] == found[1]


LATE = {
    "strategy": "edit-paper",  # T is 1, so that weights leave the range with ordinary norms
    "min_replicas": 1,
    "quorum": 2,
    "penalty": {"ratio_max": 1e9, "z_max": 1e9},
    "outer": {"lr": 1.0, "momentum": 0.0, "clip": None},
}


@pytest.mark.parametrize("rule", ["cosine", "polynomial"])
@pytest.mark.parametrize("age", [1, 40, 80])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_the_merge_is_the_formula_however_little_age_leaves(
    rule: str, age: int, order: tuple[int, ...]
) -> None:
    """D = sum(w a D_i) / sum(w), in float64; the late push makes all before it weigh less."""
    late = {"age_max": 100, "rule": rule, "decay": 10.0, "power": 10.0}
    run = RunSettings.model_validate({**LATE, "late": late})
    fragment = PureFragment(run, np.zeros(SIZE), dict.fromkeys("abc", 1))
    for _ in range(age):
        fragment.round(dict.fromkeys("ab", np.zeros(SIZE, np.float32)))
    rng = np.random.default_rng(age)
    pushes = [("a", 44.0, 0), ("b", 45.0, 0), ("c", 1.0, age)]
    values = {name: of_norm(norm, rng) for name, norm, _ in pushes}
    newest = fragment.core.saved.revision
    for name, _, its in (pushes[i] for i in order):
        pushed = fragment.push(name, values[name], base=newest - its)
        assert pushed.verdict == pb.VERDICT_ACCEPTED
        assert pushed.weight >= WEIGHT_MIN
    weight = {name: math.exp(1.0 - norm) for name, norm, _ in pushes}
    gate = 0.5 * (1.0 + math.cos(math.pi * age / 101.0))
    kept = math.exp(-10.0 * age) * gate if rule == "cosine" else (1.0 + age) ** -10.0
    left = {"a": 1.0, "b": 1.0, "c": kept}
    total = math.fsum(weight.values())
    parts = [weight[name] * left[name] / total * values[name].astype(np.float64) for name in left]
    fragment.close()
    np.testing.assert_allclose(-fragment.parameters, sum(parts), rtol=1e-5, atol=1e-25)


def test_a_late_push_of_no_weight_beside_none_that_counts_moves_nothing() -> None:
    late = {"age_max": 100, "rule": "cosine", "decay": 10.0}
    run = RunSettings.model_validate({**LATE, "late": late})
    fragment = PureFragment(run, np.ones(SIZE), dict.fromkeys("abc", 1))
    for _ in range(80):
        fragment.round(dict.fromkeys("ab", np.zeros(SIZE, np.float32)))
    pushed = fragment.push("c", np.ones(SIZE, np.float32), base=0)
    assert (pushed.verdict, pushed.weight) == (pb.VERDICT_ACCEPTED, WEIGHT_MIN)
    closing = fragment.round(dict.fromkeys("ab", np.full(SIZE, np.nan, np.float32)))
    assert closing.total_weight == 1.0 and shares(closing)["c"] > 0.0
    np.testing.assert_array_equal(fragment.parameters, np.ones(SIZE))
