"""A replica's own pace: nobody is the slower for waiting for others."""

from __future__ import annotations

import pytest

from syncline.pace import PACE_S, StepRate
from syncline_proto.rest import Progress


def told(
    steps: int, wall_s: float, waited_s: float = 0.0, phase: str = "training", revision: int = 0
) -> Progress:
    shown = {"inner_step": steps, "wall_s": wall_s, "exposed_sync_s": waited_s, "phase": phase}
    return Progress.model_validate({**shown, "revision": revision})


def test_who_waits_for_a_straggler_is_as_fast_as_ever() -> None:
    rate = StepRate()
    assert rate.of(told(10, 5.0)) is None
    assert rate.of(told(20, 10.0)) == 2.0
    assert rate.of(told(30, 30.0, 15.0, "waiting")) == 2.0, "a wait counts while it is under way"
    assert rate.of(told(40, 120.0, 100.0)) == 2.0


def test_who_waits_whenever_it_is_asked_is_measured_all_the_same() -> None:
    """Eight steps in 0.2 s, then 4.8 s for others: hardly a heartbeat meets it while it trains."""
    rate = StepRate()
    rounds = [rate.of(told(8 * n, 5.0 * n, 4.8 * n, "waiting")) for n in range(1, 4)]
    assert rounds == [None, pytest.approx(40.0), pytest.approx(40.0)]
    assert rate.of(told(32, 20.0, 19.2, "paused")) == pytest.approx(40.0)


def test_steps_of_the_synchronous_phase_say_nothing_of_those_that_follow() -> None:
    """Each of them sends its gradients, so it takes 0.22 s, and the later ones 0.02 s."""
    rate = StepRate()
    for n in range(1, 21):
        rate.of(told(5 * n, 5.0 * n, 3.9 * n, "waiting"))
    after = range(1, 5)
    rounds = [told(100 + 8 * n, 100 + 5.0 * n, 78 + 4.84 * n, "waiting", n) for n in after]
    assert [rate.of(one) for one in rounds] == [None, *[pytest.approx(50.0)] * 3]


def test_a_change_is_seen_within_the_time_that_a_pace_is_taken_over() -> None:
    rate = StepRate()
    for second in range(100):
        rate.of(told(4 * second, float(second)))
    later = range(round(PACE_S) + 1)
    found = [rate.of(told(400 + second, 100.0 + second)) for second in later]
    assert found[0] == pytest.approx(4.0, abs=0.2) and found[-1] == pytest.approx(1.0, abs=0.2)


def test_a_loop_that_starts_over_is_measured_anew() -> None:
    rate = StepRate()
    for second in range(5):
        rate.of(told(second, 100.0 + second))
    rate.of(told(5, 0.5))
    assert rate.of(told(9, 1.5)) == 4.0
