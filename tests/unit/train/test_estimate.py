"""The time left is at the speed of training, whatever it has stood still for."""

from __future__ import annotations

from syncline.train.estimate import Estimate

BUDGET = 1000


def test_it_is_at_the_mean_speed_so_far() -> None:
    estimate = Estimate(5.0, 100)
    assert estimate.left_s(6.0, 100, BUDGET) is None, "nothing is done yet"
    assert estimate.left_s(7.0, 200, BUDGET) == 16.0
    assert estimate.left_s(9.0, 1200, BUDGET) == 0.0


def test_an_outage_does_not_count() -> None:
    estimate = Estimate(0.0, 0)
    for second in range(1, 6):
        estimate.left_s(float(second), 10 * second, BUDGET)
    assert estimate.left_s(3600.0, 60, BUDGET) is None, "it has just begun anew"
    assert estimate.left_s(3601.0, 70, BUDGET) == 93.0


def test_slow_steps_are_no_standstill() -> None:
    estimate = Estimate(0.0, 0)
    assert [estimate.left_s(600.0 * n, 100 * n, BUDGET) for n in (1, 2)] == [5400.0, 4800.0]
