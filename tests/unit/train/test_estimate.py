"""The time left is at the speed of training, whatever it has stood still for."""

from __future__ import annotations

from syncline.train.estimate import Estimate

BUDGET, ROUND_S = 1000, 60.0


def left_s(estimate: Estimate, now: float, tokens: int) -> float | None:
    estimate.note(now, tokens)
    return estimate.left_s(BUDGET)


def test_it_is_at_the_mean_speed_so_far() -> None:
    estimate = Estimate(5.0, 100, ROUND_S)
    assert left_s(estimate, 6.0, 100) is None, "nothing is done yet"
    assert left_s(estimate, 7.0, 200) == 16.0
    assert left_s(estimate, 9.0, 1200) == 0.0


def test_an_outage_does_not_count() -> None:
    estimate = Estimate(0.0, 0, ROUND_S)
    for second in range(1, 6):
        estimate.note(float(second), 10 * second)
    assert left_s(estimate, 3600.0, 60) is None, "it has just begun anew"
    assert left_s(estimate, 3601.0, 70) == 93.0


def test_slow_steps_are_no_standstill() -> None:
    estimate = Estimate(0.0, 0, ROUND_S)
    assert [left_s(estimate, 600.0 * n, 100 * n) for n in (1, 2)] == [5400.0, 4800.0]


def test_a_wait_at_each_round_is_no_standstill() -> None:
    estimate, now = Estimate(0.0, 0, ROUND_S), 0.0
    for tokens in range(10, 210, 10):
        now += 1.0 if tokens % 50 else 50.0
        estimate.note(now, tokens)
    assert estimate.left_s(BUDGET) == (BUDGET - 200) * 216.0 / 200
