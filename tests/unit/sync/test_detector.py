"""The detector's thresholds, each just under and just over; what it learns, and what it forgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_proto.merging import PenaltySettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.detector import Ema, ReplicaNorms, Seen, Statistics, closed, inspect, scaled
from syncline_sync.core.record import ClosedBy
from syncline_testing.world import World

RULES = PenaltySettings()
HAIR = 1e-9
PLENTY = 99
"""Accepted pushes: enough for every rule to count."""


def ema(mean: float, deviation: float = 0.0, count: int = PLENTY) -> Ema:
    """Averages whose bias has long gone."""
    return Ema(count, mean, mean**2 + deviation**2, 0.0)


def known(own: Ema, pooled: Ema | None = None, rounds: int = PLENTY) -> Statistics:
    """Statistics that know replica "a"."""
    return Statistics(
        pooled=pooled or own,
        norms=pooled or own,
        rounds=rounds,
        replicas={"a": ReplicaNorms(own, rounds)},
    )


def is_bad(statistics: Statistics, norm: float, rules: PenaltySettings = RULES, n: int = 1) -> bool:
    return inspect(statistics, rules, "a", norm, n).bad


def test_after_norms_of_nothing_any_norm_will_do() -> None:
    rules = PenaltySettings(ema=0.75)
    statistics, _ = closed(Statistics(), rules, [good("a", 1e9)])
    while statistics.of("a").ema.mean > 0.0:
        statistics, _ = closed(statistics, rules, [good("a", 0.0)])
    assert statistics.of("a").ema.deviation > 0.0
    assert not is_bad(statistics, 1.0, rules)


def bad(replica: str, norm: float, n: int = 1) -> Seen:
    return Seen(replica, norm, n, True)


def good(replica: str, norm: float, n: int = 1) -> Seen:
    return Seen(replica, norm, n, False)


FRESH = known(ema(100.0), ema(1.0), rounds=0)
"""Its own z never counts, so that only the mean of all can judge."""


@pytest.mark.parametrize(
    ("statistics", "rules", "limit"),
    [
        (known(ema(1.0, 0.5)), {}, 1.0 + 3 * 0.5),  # z_max, over twice the mean anyway
        (known(ema(1.0, 0.5)), {"z_max": 4.0}, 1.0 + 4 * 0.5),
        (known(ema(1.0, 0.1)), {}, 2.0),  # ratio_min, over z_max anyway
        (known(ema(1.0, 0.1)), {"ratio_min": 1.5}, 1.5),
        (known(ema(8.0)), {"ratio_min": 1.0}, 8.0 * (1 + 3 * 0.05)),  # the deviation's floor
        (known(ema(8.0, 0.39)), {"ratio_min": 1.0}, 8.0 * (1 + 3 * 0.05)),
        (known(ema(8.0, 0.41)), {"ratio_min": 1.0}, 8.0 + 3 * 0.41),
        (FRESH, {}, 10.0),  # ratio_max, by the mean of all and not by its own
        (FRESH, {"ratio_max": 5.0}, 5.0),
        (known(ema(4.0, 9.0)), {"norm_max": 7.0}, 7.0),
        (Statistics(), {"norm_max": 7.0}, 7.0),  # from the first round on
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 4])
def test_a_threshold_separates_just_under_from_just_over(
    statistics: Statistics, rules: dict[str, Any], limit: float, n: int
) -> None:
    """n inner steps: all but norm_max are limits of x = G / sqrt(n)."""
    chosen = PenaltySettings(**rules)
    norm = limit if "norm_max" in rules else limit * math.sqrt(n)
    assert not is_bad(statistics, norm * (1 - HAIR), chosen, n)
    assert is_bad(statistics, norm * (1 + HAIR), chosen, n)


def test_z_counts_from_the_push_after_detector_rounds_accepted_ones() -> None:
    for accepted in (0, 9):
        assert not is_bad(known(ema(1.0), rounds=accepted), 5.0)
    assert is_bad(known(ema(1.0), rounds=10), 5.0)
    world = World("a", "b", penalty={"detector_rounds": 4})
    for _ in range(3):
        world.round("a", "b")
    third = world.core.saved
    world.round("a", "b")
    fourth = world.core.saved
    rules = world.settings.penalty
    assert not inspect(third.statistics, rules, "a", 5.0, 1).bad
    assert inspect(fourth.statistics, rules, "a", 5.0, 1).bad


def test_ratio_max_counts_from_the_third_accepted_push_on() -> None:
    for count in (0, 1, 2):
        assert not is_bad(known(ema(1.0), ema(1.0, count=count), rounds=0), 1e6)
    assert is_bad(known(ema(1.0), ema(1.0, count=3), rounds=0), 1e6)


def test_small_norms_are_never_anomalies() -> None:
    for norm in (0.0, 1e-30, 0.5):
        finding = inspect(known(ema(1.0)), PenaltySettings(ratio_min=1.0), "a", norm, 1)
        assert not finding.bad
        assert finding.z < 0


def test_who_is_new_is_judged_by_the_pooled_norms() -> None:
    statistics = known(ema(50.0), ema(1.0, 0.2))
    joiner = inspect(statistics, RULES, "new", 2.1, 1)
    assert (joiner.bad, joiner.z) == (True, pytest.approx(1.1 / 0.2))
    assert not inspect(replace(statistics, rounds=9), RULES, "new", 2.1, 1).bad


def test_without_the_penalty_no_finite_push_is_excluded() -> None:
    off = PenaltySettings(enabled=False, norm_max=0.5)
    for norm in (1e3, 1e19, 1e20):
        assert not is_bad(known(ema(1.0)), norm, off)
    for norm in (1.01e20, math.inf, math.nan):
        assert is_bad(known(ema(1.0)), norm, off)
    world = World("a", "b", strategy="diloco")
    for _ in range(12):
        world.round("a", "b")
    assert world.push("a", norm=1e6).verdict == pb.VERDICT_ACCEPTED
    assert world.push("b", norm=math.inf).verdict == pb.VERDICT_ANOMALOUS


def test_the_number_of_inner_steps_reaches_the_detector() -> None:
    """Ten times the norm of one step is no news after a hundred steps; and z says by how much."""
    world = World("a", "b")
    for norm in (1.0, 1.5) * 6:
        world.push("a", norm=norm * 3, inner_steps=9)
        world.push("b", norm=norm)
        world.closes(ClosedBy.EVERYONE)
    statistics = world.core.saved.statistics
    own = statistics.of("a").ema
    assert own == statistics.of("b").ema, "3 over 9 steps is 1 over one"
    assert world.push("a", norm=12.0, inner_steps=100).verdict == pb.VERDICT_ACCEPTED
    assert world.push("b", norm=12.0, inner_steps=1).verdict == pb.VERDICT_ANOMALOUS
    told = {c.replica: c.z for c in world.closes(ClosedBy.EVERYONE).saved.contributions}
    assert told == {
        "a": pytest.approx((1.2 - own.mean) / own.deviation),
        "b": pytest.approx((12.0 - own.mean) / own.deviation),
    }


# What is learnt


@given(
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=30),
    st.sampled_from([0.02, 0.3, 1.0]),
)
def test_the_averages_are_those_of_the_weighted_past(xs: list[float], alpha: float) -> None:
    """Bias-corrected, mean and deviation alike: weights alpha (1 - alpha)^age, made to sum to 1."""
    fed = Ema()
    for x in xs:
        fed = fed.fed(x, alpha)
    weights = alpha * (1 - alpha) ** np.arange(len(xs))[::-1]
    mean = np.average(xs, weights=weights)
    variance = np.average((np.array(xs) - mean) ** 2, weights=weights)
    assert fed.mean == pytest.approx(mean, rel=1e-9)
    assert fed.deviation == pytest.approx(math.sqrt(variance), rel=1e-4, abs=1e-5)


def test_pooled_and_own_statistics_are_of_x_and_the_weights_are_of_the_norm() -> None:
    statistics, _ = closed(Statistics(), RULES, [good("a", 6.0, n=9), good("b", 4.0, n=4)])
    assert statistics.pooled.mean == pytest.approx(2.0)
    assert statistics.norms.mean == pytest.approx((0.98 * 6.0 + 4.0) / 1.98)
    assert {r: row.ema.mean for r, row in statistics.replicas.items()} == {
        "a": pytest.approx(2.0),
        "b": pytest.approx(2.0),
    }
    assert (statistics.rounds, statistics.of("a").rounds) == (1, 1)
    again, _ = closed(statistics, RULES, [good("a", 6.0, n=9)])
    assert (again.rounds, again.of("a").rounds, again.of("b").rounds) == (2, 2, 1)


@pytest.mark.parametrize("outlier", [1e3, 1e19, math.inf, math.nan])
def test_an_outlier_moves_no_statistics(outlier: float) -> None:
    """Neither its own, nor the pooled ones, nor the weights' scale."""
    before, _ = closed(Statistics(), RULES, [good(r, 1.0) for r in "abc"])
    rest = [good("b", 1.1), good("c", 1.2)]
    without, _ = closed(before, RULES, rest)
    with_it, _ = closed(before, RULES, [bad("a", outlier), *rest])
    assert with_it.pooled == without.pooled
    assert with_it.norms == without.norms
    assert with_it.of("a").ema == before.of("a").ema
    assert with_it.of("a").rounds == before.of("a").rounds
    nothing, _ = closed(before, RULES, [bad("a", outlier)])
    assert (nothing.pooled, nothing.norms) == (before.pooled, before.norms)
    assert nothing.rounds == before.rounds


# Nobody is locked out


def after(statistics: Statistics, *rounds: Sequence[Seen]) -> tuple[Statistics, list[str]]:
    """Statistics after rounds in which "b" and "c" were as ever, and what was told."""
    told: list[str] = []
    for seen in rounds:
        statistics, sentences = closed(statistics, RULES, [*seen, good("b", 1.0), good("c", 1.0)])
        told += sentences
    return statistics, told


SETTLED = known(ema(1.0))


def test_three_exclusions_in_a_row_restart_from_all_three_norms() -> None:
    two, told = after(SETTLED, [bad("a", 3.0)], [bad("a", 4.0)])
    assert (two.of("a"), told) == (ReplicaNorms(ema(1.0), PLENTY, (3.0, 4.0)), [])
    three, told = after(two, [bad("a", 10.0, n=4)])
    expected = Ema()
    for x in (3.0, 4.0, 5.0):
        expected = expected.fed(x, RULES.ema)
    assert three.of("a") == ReplicaNorms(expected, 3)
    assert three.of("a").ema.mean == pytest.approx(4.0, abs=0.02)
    (sentence,) = told
    assert sentence.startswith("a was excluded 3 times")


def test_three_exclusions_in_all_do_not() -> None:
    no, yes = [bad("a", 3.0)], [good("a", 1.0)]
    statistics, told = after(SETTLED, no, no, yes, no, no)
    assert (statistics.of("a").excluded, told) == ((3.0, 3.0), [])
    assert statistics.of("a").ema.mean == pytest.approx(1.0)
    _, told = after(statistics, no)
    assert told


def test_a_round_without_it_or_with_what_is_not_finite_is_no_exclusion() -> None:
    no = [bad("a", 3.0)]
    statistics, told = after(SETTLED, no, no, [], [bad("a", math.nan)], [bad("a", math.inf)])
    assert (statistics.of("a").excluded, told) == ((3.0, 3.0), [])


@pytest.mark.parametrize("where", range(3))
def test_who_was_once_over_ratio_max_is_not_taken_in(where: int) -> None:
    """Any of its last three norms keeps it out, and it stays judged by what it was before."""
    norms = [3.0, 3.0, 3.0]
    norms[where] = 10.1
    statistics, told = after(SETTLED, *([bad("a", norm)] for norm in norms))
    assert (statistics.of("a"), told) == (ReplicaNorms(ema(1.0), PLENTY, tuple(norms)), [])
    norms[where] = 9.9
    statistics, told = after(SETTLED, *([bad("a", norm)] for norm in norms))
    assert statistics.of("a").rounds == 3
    assert told


def test_only_its_last_three_norms_keep_a_replica_out() -> None:
    far, near = [bad("a", 1e3)], [bad("a", 3.0)]
    statistics, told = after(SETTLED, far, far, far, far, near, near)
    assert (statistics.of("a").excluded, told) == ((1e3, 3.0, 3.0), [])
    statistics, told = after(statistics, near)
    assert statistics.of("a").ema.mean == pytest.approx(3.0)
    assert told


MOST = [bad("a", 3.0), bad("b", 3.0), bad("c", 3.0), good("d", 1.0)]
HALF = [bad("a", 3.0), bad("b", 3.0), good("c", 1.0), good("d", 1.0)]
POISON = [bad("a", 3.0), bad("b", 3.0), bad("c", math.nan), bad("d", math.inf)]


@pytest.mark.parametrize(
    ("rounds", "restarts"),
    [
        ((MOST, MOST), True),
        ((MOST,), False),
        ((HALF, HALF), False),
        ((MOST, HALF, MOST), False),
        ((HALF, MOST, MOST), True),
        ((POISON, POISON), False),
        ((MOST, POISON, MOST), False),
    ],
    ids=["most", "once", "exactly half", "not in a row", "after half", "poison", "poison between"],
)
def test_two_bad_rounds_in_a_row_restart_the_fragment(
    rounds: Sequence[Sequence[Seen]], restarts: bool
) -> None:
    """Bad is a round in which more than half of the pushes were finite and excluded."""
    statistics = known(ema(1.0))
    for number, seen in enumerate(rounds):
        statistics, told = closed(statistics, RULES, seen)
        last = number == len(rounds) - 1
        assert (statistics == Statistics()) == (restarts and last)
        assert any("most pushes" in sentence for sentence in told) == (restarts and last)


@pytest.mark.parametrize("how", [{"asynchronous": True}, {"quorum": 1, "grace_seconds": 0.0}])
def test_who_pushes_alone_is_not_most_however_often_it_does(how: dict[str, Any]) -> None:
    """Where one push is a round, two of one replica are two rounds of which all was excluded."""
    world = World("a", "b", min_replicas=1, expected_replicas=1, **how)

    def pushes(replica: str, norm: float) -> tuple[str, ...]:
        bad = world.push(replica, norm=norm).verdict == pb.VERDICT_ANOMALOUS
        assert bad == (norm > 1.0)
        closed_by = world.core.due(world.now_s)
        assert closed_by is not None
        return world.core.close(closed_by).told

    for replica in ("a", "b") * 12:
        pushes(replica, 1.0)
    settled = world.core.saved.statistics
    for replica in "bbbbab":
        assert not pushes(replica, 1e3)
    assert world.core.saved.statistics.pooled == settled.pooled
    (told,) = pushes("a", 1e3)
    assert "most pushes" in told, "both twice in a row: that is most"
    assert world.core.saved.statistics == Statistics()


@given(st.permutations([good("a", 1.1), good("a", 1.2, 2), good("b", 0.9), bad("b", 30.0)]))
def test_all_that_a_replica_has_in_one_round_counts_in_whatever_order_it_came(
    seen: list[Seen],
) -> None:
    """Its late push, which is older, and its next one: each of both is one of its norms."""
    aged = [replace(push, age=int(push.inner_steps == 1)) for push in seen]
    before = known(ema(1.0), ema(1.0))
    after, _ = closed(before, RULES, aged)
    assert after.replicas["a"].rounds == before.replicas["a"].rounds + 2
    own = before.replicas["a"].ema.fed(1.1, RULES.ema)
    assert after.replicas["a"].ema == own.fed(scaled(1.2, 2), RULES.ema)
    assert after.replicas["b"].rounds == before.rounds + 1, "the good one of both is kept"
    assert after.replicas["b"].excluded == (30.0,)


def test_who_is_accepted_in_each_round_is_not_excluded_in_a_row() -> None:
    statistics = known(ema(1.0), ema(1.0))
    for _ in range(4):
        seen = [replace(bad("a", 5.0), age=1), good("a", 1.0), good("b", 1.0), good("c", 1.0)]
        statistics, told = closed(statistics, RULES, seen)
        assert not told
    assert statistics.replicas["a"].excluded == (5.0,)


@pytest.mark.parametrize("replica", ["a", "new"])
def test_new_lives_are_judged_by_all_at_once_and_by_themselves_after_a_while(replica: str) -> None:
    """Their first pushes are longer, since their optimizers begin anew: of a run restored, say."""
    before = known(ema(1.0, 0.05))
    longer, far = 3.0, RULES.ratio_max + HAIR
    assert inspect(before, RULES, replica, longer, 1).bad
    rested = before.of_new_lives()
    assert rested.of(replica).ema == before.of(replica).ema and rested.norms == before.norms
    for _ in range(RULES.detector_rounds):
        found = inspect(rested, RULES, replica, longer, 1)
        assert not found.bad and found.z > RULES.z_max
        assert inspect(rested, RULES, replica, far, 1).bad
        rested, _ = closed(rested, RULES, [good(replica, 1.0)])
    assert inspect(rested, RULES, replica, longer, 1).bad


def test_exclusions_before_it_do_not_count_for_a_new_life() -> None:
    excluded, _ = closed(known(ema(1.0)), RULES, [bad("a", 3.0)])
    assert excluded.of("a").excluded and not excluded.of_new_lives().of("a").excluded
