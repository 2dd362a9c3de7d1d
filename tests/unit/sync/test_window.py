"""Without rounds that wait: Delayed Nesterov's algebra, weights, ages, and when it goes on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_proto.merging import LateSettings, OuterSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import ClosedBy, Kind
from syncline_sync.core.staleness import age_factor
from syncline_sync.core.weights import Scale
from syncline_sync.core.window import WEIGHT_MAX, Window, guarded
from syncline_testing.pure import PureFragment
from syncline_testing.world import World, rules

SIZE = 6
vectors = st.lists(st.floats(-3, 3, width=32), min_size=SIZE, max_size=SIZE).map(
    lambda values: np.array(values, np.float32)
)
PLAIN: dict[str, Any] = {
    "asynchronous": True,
    "min_replicas": 1,
    "penalty": {"enabled": False},
    "outer": {"lr": 0.7, "momentum": 0.9, "clip": None},
}


def fragment(**given: Any) -> PureFragment:
    start = np.arange(SIZE, dtype=np.float32)
    return PureFragment(rules(**given), start, {"a": 1, "b": 1, "c": 1})


def passed(f: PureFragment, values: np.ndarray[Any, Any], replica: str = "a", **how: Any) -> None:
    f.push(replica, values, **how)
    f.close()


# The algebra


@given(windows=st.lists(st.lists(vectors, min_size=3, max_size=3), min_size=1, max_size=4))
def test_a_window_of_pushes_of_no_age_is_one_step_of_nesterovs_on_their_mean(
    windows: list[list[np.ndarray[Any, Any]]],
) -> None:
    f = fragment(**PLAIN, window=3)
    barrier = fragment(**{**PLAIN, "asynchronous": False, "min_replicas": 3})
    for pushes in windows:
        for values in pushes:
            passed(f, values)
        barrier.round(dict(zip("abc", pushes, strict=True)))
        assert f.parameters == pytest.approx(barrier.parameters, abs=1e-4)
        assert f.momentum == pytest.approx(barrier.momentum, abs=1e-4)


@given(pushes=st.lists(vectors, min_size=1, max_size=6))
def test_a_window_of_one_is_nesterov(pushes: list[np.ndarray[Any, Any]]) -> None:
    f = fragment(**PLAIN, window=1)
    alone = fragment(**{**PLAIN, "asynchronous": False})
    for values in pushes:
        passed(f, values)
        alone.push("a", values)
        alone.close()
        assert f.parameters == pytest.approx(alone.parameters, abs=1e-4)


def test_within_a_window_the_momentum_changes_nothing() -> None:
    """By the algorithm as it is printed, with its buffer, in float64."""
    f = fragment(**PLAIN, window=4)
    chance = np.random.default_rng(0)
    theta, m, buffer = np.arange(SIZE, dtype=np.float64), np.zeros(SIZE), np.zeros(SIZE)
    for t in range(14):
        g = chance.normal(size=SIZE)
        buffer += g
        if (t + 1) % 4:
            theta = theta - 0.7 * g / 4
        else:
            m, buffer = 0.9 * m + buffer / 4, np.zeros(SIZE)
            theta = theta - 0.7 * (0.9 * m + g / 4)
        passed(f, g.astype(np.float32))
        assert f.parameters == pytest.approx(theta, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("window", [None, 1, 4], ids=["rounds", "windows of 1", "of 4"])
def test_a_restart_forgets_the_momentum_every_so_many_rounds(window: int | None) -> None:
    outer, how = {**PLAIN["outer"], "restart_every": 2}, {"asynchronous": window is not None}
    f = fragment(**{**PLAIN, **how, "outer": outer, "window": window})
    one = np.ones(SIZE, np.float32)
    seen: list[float] = []
    for _ in range(5):
        for _ in range(window or 1):
            passed(f, one)
        seen.append(float(f.momentum[0]))
    assert seen == pytest.approx([1.0, 1.9, 1.0, 1.9, 1.0])


@pytest.mark.parametrize("n", [2, 3], ids=["more than it lacks", "what it lacks"])
def test_pushes_that_waited_for_the_minimum_are_one_step_of_one_window(n: int) -> None:
    f = fragment(**{**PLAIN, "min_replicas": 3}, window=n)
    theta, (first, second, third, fourth) = f.parameters.copy(), np.eye(4, SIZE, dtype=np.float32)
    passed(f, first)
    f.core.adopt(0.0, {"a": 1, "b": 1}, f.settings, True)
    f.push("a", second)
    f.push("b", third)
    assert f.core.due(0.0) is None
    f.core.adopt(0.0, f.members, f.settings, True)
    window = f.close().saved.window
    assert (window.done, window.number) == (0, 1), "it ends once, and none begins the next"
    m = (first + second + third) / n
    theta = theta - 0.7 * (m + 0.9 * m)
    assert f.parameters == pytest.approx(theta, abs=1e-5)
    passed(f, fourth)
    assert f.parameters == pytest.approx(theta - 0.7 * fourth / n, abs=1e-5)
    assert f.momentum == pytest.approx(0.9 * m + fourth / n, abs=1e-5)


def test_the_clip_is_of_a_push() -> None:
    f = fragment(**{**PLAIN, "outer": {"lr": 1.0, "momentum": 0.0, "clip": 1.0}}, window=4)
    before = f.parameters.copy()
    passed(f, np.full(SIZE, 100.0, np.float32))
    assert np.linalg.norm(f.parameters - before) == pytest.approx(1.0 / 4, rel=1e-4)


# Windows


def test_a_window_is_as_large_as_those_who_take_part_when_it_begins() -> None:
    w = World("a", "b", "c", **PLAIN)
    for replica, size in [("a", 1), ("b", 1), ("a", 2), ("c", 2), ("a", 3), ("b", 3)]:
        w.push(replica)
        assert w.closes(ClosedBy.PUSH).saved.window.size == size
    w.adopt(b=None, c=None)
    w.push("a")
    assert w.closes(ClosedBy.PUSH).saved.window.size == 3, "frozen until it ends"
    w.push("a")
    assert w.closes(ClosedBy.PUSH).saved.window.size == 1


def test_what_does_not_count_is_no_push_of_the_window() -> None:
    w = World("a", **PLAIN, window=2)
    for norm, done in [(1.0, 1), (math.nan, 1), (1.0, 0)]:
        w.push("a", norm=norm)
        closing = w.closes(ClosedBy.PUSH)
        assert closing.saved.window.done == done
        assert (closing.total_weight == 0.0) == math.isnan(norm)


def test_the_synchronous_phase_waits_for_everyone_and_is_of_no_window() -> None:
    w = World("a", "b", **{**PLAIN, "min_replicas": 2}, warmup_steps=1)
    w.gradient("a", 1)
    w.waits()
    w.gradient("b", 1)
    closing = w.closes(ClosedBy.EVERYONE)
    assert (closing.total_weight, closing.carry, closing.saved.window) == (2.0, None, Window())
    assert w.push("a", kind=Kind.PARAMETERS, base=0).sets
    w.core.keep_offer()
    assert w.closes(ClosedBy.OFFER).saved.window == Window()
    w.push("a")
    assert w.closes(ClosedBy.PUSH).saved.window.size == 2, "who was in the phase takes part"


def test_below_the_minimum_a_push_waits_for_more_to_come() -> None:
    w = World("a", "b", **{**PLAIN, "min_replicas": 2})
    w.push("a")
    assert w.closes(ClosedBy.PUSH).saved.revision == 1
    w.adopt(b=None)
    w.push("a", base=0)
    w.waits()
    assert w.core.arrived == ("a",), "however old its base"
    w.adopt(c=1)
    w.closes(ClosedBy.PUSH)


def test_pushes_of_any_age_within_so_many_rounds_are_taken_and_answered_alike() -> None:
    w = World("a", "b", **PLAIN, window=4, late={"age_max": 2})
    for _ in range(12):
        w.push("a")
        w.closes(ClosedBy.PUSH)
    old = w.push("b", base=1)
    assert (old.verdict, old.result, old.counts_in) == (pb.VERDICT_ACCEPTED, 13, 0)
    assert old.weight == pytest.approx((1 + (11 - 3) / 4) ** -0.5)
    w.closes(ClosedBy.PUSH)
    assert w.push("b", base=1).verdict == pb.VERDICT_STALE, "twelve: more than two rounds late"


@pytest.mark.parametrize(
    "how", [{}, {"late": {"rule": "cosine"}}, {"late": {"age_max": 0}, "window": 4}], ids=str
)
def test_of_replicas_of_equal_speed_nobody_is_late_however_many_they_are(how: Any) -> None:
    w, bases, told = World(*"abcd", **PLAIN, **how), dict.fromkeys("abcd", 0), list[float]()
    for replica in 6 * "abcd":
        pushed = w.push(replica, base=bases[replica])
        assert pushed.verdict == pb.VERDICT_ACCEPTED
        bases[replica] = w.closes(ClosedBy.PUSH).saved.revision
        told.append(pushed.weight)
    assert w.core.saved.window.size == 4
    assert told[-12:] == [1.0] * 12, "though each base is three revisions old"


# Weights, ages and the guard

norms = st.floats(0.01, 100)


def test_a_push_of_next_to_no_weight_is_folded_all_the_same() -> None:
    """The last of a window makes the momentum's step."""
    penalty = {"ratio_max": 1e9, "z_max": 1e9}
    w = World("a", **{**PLAIN, "penalty": penalty}, window=4)
    for norm in (1.0, 1.0, 1.0, 1e6):
        pushed = w.push("a", norm=norm)
        assert (pushed.verdict, pushed.weight > 0.0) == (pb.VERDICT_ACCEPTED, True)
        w.closes(ClosedBy.PUSH)
    assert pushed.weight < 1e-20 and w.core.saved.window.number == 1


@given(recent=st.lists(st.tuples(norms, st.integers(1, 99)), max_size=8), norm=norms)
def test_weights_fall_with_the_norm_and_are_bounded(
    recent: list[tuple[float, int]], norm: float
) -> None:
    settings, window = rules(**PLAIN, sync_every=10), Window(recent=tuple(recent))
    here = window.weight(Scale(0.5), settings, norm, 10)
    assert 0.0 <= window.weight(Scale(0.5), settings, 1.1 * norm, 10) <= here <= WEIGHT_MAX
    assert window.weight(Scale(None), settings, norm, 10) == pytest.approx(1.0)
    alike = Window(recent=((norm, 10),) * 5)
    assert alike.weight(Scale(0.5), settings, norm, 10) == pytest.approx(1.0)


def test_shares_of_steps_count_where_the_run_says_so() -> None:
    settings = rules(**{**PLAIN, "penalty": {"enabled": False, "step_power": 1.0}}, sync_every=10)
    window = Window(recent=((1.0, 10),) * 3)
    assert window.weight(Scale(None), settings, 1.0, 30) == pytest.approx(4 * 3 / 6)
    assert window.weight(Scale(None), settings, 1.0, 5) == pytest.approx(4 * 0.5 / 3.5)


@given(rule=st.sampled_from(["polynomial", "cosine"]), age=st.floats(0, 10), limit=st.floats(0, 10))
def test_age_leaves_all_at_0_and_less_and_less_after(rule: Any, age: float, limit: float) -> None:
    late = LateSettings(rule=rule)
    assert age_factor(late, 0.0, limit) == 1.0
    assert 0.0 <= age_factor(late, age + 0.5, limit) <= age_factor(late, age, limit) <= 1.0
    if rule == "cosine":
        assert age_factor(late, limit + 1.0, limit) == pytest.approx(0.0, abs=1e-12)


@given(age=st.floats(0, 10), limit=st.integers(0, 10), factor=st.floats(0, 3))
def test_what_age_leaves_is_the_formula_that_is_printed(
    age: float, limit: int, factor: float
) -> None:
    polynomial = LateSettings(rule="polynomial", power=factor, decay=9.0)
    assert age_factor(polynomial, age, limit) == pytest.approx((1.0 + age) ** -factor)
    cosine = LateSettings(rule="cosine", decay=factor, power=9.0)
    gate = 0.5 * (1.0 + math.cos(math.pi * min(age / (limit + 1), 1.0)))
    assert age_factor(cosine, age, limit) == pytest.approx(math.exp(-factor * age) * gate)


@given(age=st.floats(0, 50), momentum=st.floats(0, 0.99), lr=st.floats(0.01, 5))
def test_the_guard_bounds_the_lr_only_where_pushes_are_old(
    age: float, momentum: float, lr: float
) -> None:
    outer = OuterSettings(lr=lr, momentum=momentum)
    bounded = guarded(outer, age).lr
    assert bounded <= lr
    if age <= 1.0:
        assert bounded == lr
    assert guarded(outer, age + 1.0).lr <= bounded
    assert guarded(outer.model_copy(update={"age_guard": None}), age).lr == lr


def test_the_guard_is_the_formula_that_is_printed() -> None:
    outer = OuterSettings(lr=9.0, momentum=0.9, age_guard=3.0)
    assert guarded(outer, 2.0).lr == pytest.approx(3 * 0.1 * 2 * math.sin(math.pi / 10), rel=1e-12)
    assert guarded(outer, 2.0).lr == pytest.approx(0.6 * 0.30901699437, rel=1e-9)


def test_the_guard_follows_the_mean_age_of_what_is_pushed() -> None:
    w = World("a", "b", **PLAIN, window=2, late={"age_max": 100})
    for _ in range(60):
        w.push("a")
        w.closes(ClosedBy.PUSH)
        w.push("b", base=max(0, w.core.saved.revision - 12))
        w.closes(ClosedBy.PUSH)
    w.push("a")
    closing = w.closes(ClosedBy.PUSH)
    assert closing.saved.window.age == pytest.approx(3.0, abs=0.5)
    assert closing.outer.lr == pytest.approx(2 * 0.1 * 2 * math.sin(math.pi / 14), rel=0.2)
