"""The learning rate's laws, for any budget, warm-up and decay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.train.schedules import Schedule


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    total = draw(st.integers(2, 1000))
    return Schedule(
        kind=draw(st.sampled_from(["cosine", "wsd", "constant"])),
        peak=draw(st.sampled_from([1e-4, 3e-3, 1.0])),
        warmup_tokens=draw(st.integers(0, total - 1)),
        total_tokens=total,
        decay_share=draw(st.sampled_from([0.01, 0.2, 1.0])),
        min_ratio=draw(st.sampled_from([0.0, 0.1, 1.0])),
    )


@given(schedules(), st.integers(0, 2000))
def test_the_rate_is_between_nothing_and_the_peak(schedule: Schedule, tokens: int) -> None:
    assert 0.0 <= schedule.lr(tokens) <= schedule.peak * (1 + 1e-12)


@given(schedules(), st.integers(0, 2000))
def test_it_rises_in_the_warm_up_and_never_again(schedule: Schedule, tokens: int) -> None:
    now, then = schedule.lr(tokens), schedule.lr(tokens + 1)
    if tokens + 1 <= schedule.warmup_tokens:
        assert then > now
    else:
        assert then <= now * (1 + 1e-12)


@given(schedules())
def test_it_is_the_peak_where_the_warm_up_ends(schedule: Schedule) -> None:
    assert schedule.lr(schedule.warmup_tokens) == pytest.approx(schedule.peak)


@given(schedules(), st.integers(0, 10))
def test_it_ends_at_the_smallest_rate_and_stays_there(schedule: Schedule, after: int) -> None:
    assert schedule.total_tokens is not None
    last = 1.0 if schedule.kind == "constant" else schedule.min_ratio
    assert schedule.lr(schedule.total_tokens + after) == pytest.approx(schedule.peak * last)


@given(schedules())
def test_it_never_jumps(schedule: Schedule) -> None:
    """One token moves it by no more than the steepest of its parts."""
    assert schedule.total_tokens is not None
    left = schedule.total_tokens - schedule.warmup_tokens
    decay = min(left, max(1, round(schedule.decay_share * schedule.total_tokens)))
    # A cosine is steepest in its middle: pi / 2 times a straight line.
    steepest = schedule.peak * max(1 / max(1, schedule.warmup_tokens), 1.5708 / min(left, decay))
    rates = [schedule.lr(tokens) for tokens in range(schedule.total_tokens + 2)]
    first = schedule.warmup_tokens == 0
    jumps = [abs(b - a) for a, b in zip(rates[first:], rates[first + 1 :], strict=False)]
    assert max(jumps) <= steepest * (1 + 1e-9)


@pytest.mark.parametrize(("tokens", "share"), [(300, 0.85355339), (500, 0.5), (700, 0.14644661)])
def test_cosine_is_a_cosine(tokens: int, share: float) -> None:
    """(1 + cos(pi t)) / 2 at a quarter, half and three quarters of what follows the warm-up."""
    schedule = Schedule(kind="cosine", peak=2.0, warmup_tokens=100, total_tokens=900, min_ratio=0.1)
    assert schedule.lr(tokens) == pytest.approx(2.0 * (0.1 + 0.9 * share), rel=1e-6)


def test_wsd_is_flat_until_it_decays() -> None:
    schedule = Schedule(
        kind="wsd", peak=1.0, warmup_tokens=10, total_tokens=100, decay_share=0.2, min_ratio=0.1
    )
    assert {schedule.lr(tokens) for tokens in range(10, 81)} == {1.0}
    assert schedule.lr(90) == pytest.approx(0.55)


def test_a_run_without_an_end_can_only_be_constant() -> None:
    schedule = Schedule(kind="constant", peak=1.0, warmup_tokens=2)
    assert [schedule.lr(tokens) for tokens in (0, 1, 2, 10**12)] == [0.0, 0.5, 1.0, 1.0]
    with pytest.raises(AssertionError):
        Schedule(kind="cosine", peak=1.0)
