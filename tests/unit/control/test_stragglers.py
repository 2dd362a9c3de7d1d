"""Who straggles is named, given fewer steps, and only then let go; whatever replicas measure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from syncline_control.core.stragglers import (
    RATE_MAX,
    RATE_MIN,
    Mark,
    Sample,
    Verdict,
    least_share,
    look,
)
from syncline_proto.settings import RunSettings
from syncline_proto.straggling import StragglerSettings

LOOK_S = 5.0


@dataclass
class Race:
    """Replicas that are looked at again and again; who is let go is leaving from then on."""

    rules: StragglerSettings
    least: int = 1
    share: float | None = 0.0
    """The least that a replica can make of a round's steps; None: by time."""
    now: float = 0.0
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])
    leaving: set[str] = field(default_factory=set[str])
    told: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def look(self, rates: dict[str, float | None]) -> list[Verdict]:
        self.now += LOOK_S
        samples = [
            Sample(
                replica=name,
                rate=rate,
                mark=self.marks.get(name, Mark()),
                leaves=name in self.leaving,
            )
            for name, rate in rates.items()
        ]
        found = look(self.now, samples, self.rules, self.least, self.share)
        for one in found:
            self.marks[one.replica] = one.mark
            self.told += [(kind, one.replica) for kind, _ in one.events]
            if one.let_go:
                self.leaving.add(one.replica)
                self.told.append(("let go", one.replica))
        return found

    def go_on(self, seconds: float, **rates: float | None) -> Race:
        for _ in range(round(seconds / LOOK_S)):
            self.look(rates)
        return self


def race(policy: str = "tell", least: int = 1, share: float | None = 0.0, **rules: Any) -> Race:
    made = StragglerSettings(policy=policy, **rules)  # type: ignore[arg-type]
    return Race(made, least=least, share=share)


def test_a_straggler_is_named_after_a_while_and_once_and_so_is_its_return() -> None:
    run = race().go_on(55.0, a=2.0, b=2.1, c=0.8)
    assert run.told == []
    run.go_on(60.0, a=2.0, b=2.1, c=0.8)
    assert run.told == [("replica.straggles", "c")]
    run.go_on(60.0, a=2.0, b=2.1, c=1.5)
    assert len(run.told) == 1, "0.73 times the others is not halfway back"
    run.go_on(60.0, a=2.0, b=2.1, c=2.0)
    assert run.told[1:] == [("replica.keeps_up", "c")]
    assert run.marks["c"] == Mark()


def test_a_short_weakness_is_none() -> None:
    run = race()
    for _ in range(5):
        run.go_on(50.0, a=1.0, b=1.0, c=0.2).go_on(5.0, a=1.0, b=1.0, c=1.0)
    assert run.told == []


def test_the_sentence_says_how_slow() -> None:
    run = race()
    looks = [run.look({"a": 1.0, "b": 0.4}) for _ in range(13)]
    said = [text for found in looks for one in found for _, text in one.events]
    assert said == ["b straggles: 0.40 times as fast as the others' median, for 60 s."]


def test_fewer_steps_take_a_straggler_as_long_as_the_others() -> None:
    run = race("fewer-steps").go_on(70.0, a=2.0, b=2.0, c=0.82)
    assert run.told == [("replica.straggles", "c"), ("replica.steps", "c")]
    assert run.marks["c"].share == pytest.approx(0.4)
    run.go_on(60.0, a=2.0, b=2.0, c=0.9)
    assert run.marks["c"].share == pytest.approx(0.4), "a small change is not worth a word"
    run.go_on(60.0, a=2.0, b=2.0, c=1.2)
    assert run.marks["c"].share == pytest.approx(0.6)
    run.go_on(60.0, a=2.0, b=2.0, c=0.1)
    assert run.marks["c"].share == 0.25
    run.go_on(9_999.0, a=2.0, b=2.0, c=0.1)
    assert not run.leaving, "nobody is let go by this policy"
    run.go_on(60.0, a=2.0, b=2.0, c=2.0)
    assert run.marks["c"].share == 1.0


@pytest.mark.parametrize("policy", ["tell", "fewer-steps", "let-go"])
def test_by_time_everybody_makes_as_many_as_he_can(policy: str) -> None:
    run = race(policy, share=None).go_on(9_999.0, a=2.0, b=2.0, c=0.6)
    assert run.told == [("replica.straggles", "c")], "slow, and of use"
    assert run.marks["c"].share == 1.0


def test_by_time_who_brings_less_than_the_least_share_is_let_go() -> None:
    rates: dict[str, float | None] = {"a": 2.0, "b": 2.0, "c": 0.4}
    run = race("let-go", share=None).go_on(660.0, **rates)
    assert not run.leaving
    (said,) = [one.let_go for one in run.look(rates) if one.let_go]
    assert said == (
        "c is let go: 0.20 times as fast as the others' median, and so it brings less than 25 % "
        "of their inner steps, for 600 s; it is draining."
    )
    assert not race("fewer-steps", share=None).go_on(9_999.0, **rates).leaving


def test_overlap_leaves_no_fewer_steps_than_go_on_meanwhile() -> None:
    """Whom these do not help holds up the others, and so it is said; it may be let go."""
    rates: dict[str, float | None] = {"a": 2.0, "b": 2.0, "c": 0.8}
    run = race("let-go", share=0.5).go_on(55.0, **rates)
    said = [text for one in run.look(rates) + run.look(rates) for _, text in one.events]
    assert said[1:] == [
        "c makes 50 % of a round's inner steps, which is the least; the others wait for it still."
    ]
    run.go_on(595.0, **rates)
    assert not run.leaving
    (said,) = [one.let_go for one in run.look(rates) if one.let_go]
    assert "too slow for even 50 % of a round's inner steps" in said
    helped = race("let-go", share=0.5).go_on(9_999.0, a=2.0, b=2.0, c=1.1)
    assert not helped.leaving and helped.marks["c"].share == pytest.approx(0.55)


def test_with_a_whole_round_of_delay_nobody_makes_fewer_and_who_straggles_is_let_go() -> None:
    run = race("let-go", share=1.0).go_on(9_999.0, a=2.0, b=2.0, c=1.2, d=1.8)
    assert run.told == [("replica.straggles", "c"), ("let go", "c")]


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"sync_every": 8}, 0.125),
        ({"sync_every": 8, "overlap_steps": 6}, 0.75),
        ({"sync_every": 8, "overlap_steps": 8, "overlap_eager": True}, 1.0),
        ({"sync_every": 8, "sync_seconds": 5.0, "overlap_steps": 8}, None),
    ],
)
def test_the_least_share_is_what_a_replica_can_make(
    settings: dict[str, Any], least: float | None
) -> None:
    """A round is over before its replica's next push (``fewer`` in the worker's trigger)."""
    assert least_share(RunSettings.model_validate(settings)) == least


def test_only_whom_the_least_share_does_not_help_is_let_go_and_one_at_a_time() -> None:
    rates = {"a": 1.0, "b": 1.0, "c": 1.0, "helped": 0.3, "slow": 0.1, "slower": 0.1}
    run = race("let-go").go_on(655.0, **rates)
    assert not run.leaving
    run.go_on(60.0, **rates)
    assert run.leaving == {"slow"}, "one leaves still"
    del rates["slow"]
    run.leaving.clear()
    run.go_on(5.0, **rates)
    assert run.leaving == {"slower"}
    del rates["slower"]
    run.leaving.clear()
    run.go_on(9_999.0, **rates)
    assert not run.leaving, "fewer steps are enough"


def test_nobody_is_let_go_of_so_many_as_a_run_needs_at_least() -> None:
    rates = {"a": 1.0, "b": 1.0, "slow": 0.1}
    run = race("let-go", least=3).go_on(9_999.0, **rates)
    assert not run.leaving and run.marks["slow"].share == 0.25
    run.go_on(LOOK_S, **rates, more=1.0)
    assert run.leaving == {"slow"}


def test_who_was_only_named_so_far_makes_fewer_steps_before_it_is_let_go() -> None:
    rates = {"a": 2.0, "b": 2.0, "c": 0.1}
    run = race("tell").go_on(9_999.0, **rates)
    run.rules = run.rules.model_copy(update={"policy": "let-go"})
    run.go_on(600.0, **rates)
    assert run.told == [("replica.straggles", "c"), ("replica.steps", "c")]
    assert run.marks["c"].share == 0.25 and not run.leaving
    run.go_on(5.0, **rates)
    assert run.leaving == {"c"}


def test_what_nobody_knows_is_a_break_and_who_is_alone_holds_up_nobody() -> None:
    run = race("fewer-steps").go_on(50.0, a=1.0, b=0.4).go_on(5.0, a=None, b=0.4)
    run.go_on(50.0, a=1.0, b=0.4)
    assert run.told == []
    run.go_on(20.0, a=1.0, b=0.4).go_on(60.0, a=None, b=0.4)
    assert run.marks["b"].share == pytest.approx(0.4), "what it was told stays"
    run.go_on(5.0, b=0.4)
    assert (run.marks["b"], run.told[-1]) == (Mark(), ("replica.keeps_up", "b"))


@pytest.mark.parametrize("lie", [-1.0, -1e308, 5e-324, 1e300, math.inf, math.nan])
def test_a_rate_that_cannot_be_is_nobodys(lie: float) -> None:
    run = race("let-go", let_go_seconds=60.0).go_on(900.0, a=1.0, b=lie, c=0.9)
    assert run.told == [] and run.marks["b"] == Mark()
    assert race("let-go").go_on(900.0, a=1.0, b=lie).told == [], "of two it is no measure either"


def test_settings_that_could_not_help_are_refused() -> None:
    with pytest.raises(ValidationError, match="share_min"):
        StragglerSettings(pace_min=0.3, share_min=0.5)


RATES = st.one_of(
    st.none(), st.floats(), st.floats(0.0, 1e6), st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0])
)


@settings(max_examples=200, deadline=None)
@given(
    looks=st.lists(st.lists(RATES, min_size=1, max_size=5), min_size=1, max_size=40),
    policy=st.sampled_from(["tell", "fewer-steps", "let-go"]),
    least=st.integers(1, 4),
    share=st.sampled_from([None, 0.0, 0.5, 1.0]),
)
def test_whatever_is_measured_the_order_is_kept(
    looks: Sequence[Sequence[float | None]], policy: str, least: int, share: float | None
) -> None:
    run = race(policy, least, share, seconds=10.0, let_go_seconds=20.0)
    floor = 1.0 if share is None else max(share, run.rules.share_min)
    for rates in looks:
        names = [f"r{number}" for number in range(len(rates))]
        staying = sum(name not in run.leaving for name in names)
        before = dict(run.marks)
        found = run.look(dict(zip(names, rates, strict=True)))
        gone = [one for one in found if one.let_go]
        assert len(gone) <= 1 and (not gone or staying > least), "the minimum stays"
        assert not gone or policy == "let-go"
        for one in found:
            assert one.pace is None or 0.0 <= one.pace < math.inf
            was = before.get(one.replica, Mark())
            assert floor <= one.mark.share <= 1.0
            assert one.mark.share == 1.0 or (one.mark.straggles and policy != "tell")
            assert not one.let_go or (was.straggles and was.share == floor)
            kinds = [kind for kind, _ in one.events]
            assert ("replica.straggles" in kinds) == (one.mark.straggles and not was.straggles)
            assert ("replica.keeps_up" in kinds) == (was.straggles and not one.mark.straggles)
            assert ("replica.steps" in kinds) <= (one.mark.share != was.share)


@given(rates=st.lists(st.floats(0.7, 1.0), min_size=1, max_size=8))
def test_nobody_straggles_where_all_are_about_as_fast(rates: Iterable[float]) -> None:
    run = race("let-go")
    run.go_on(900.0, **{f"r{number}": rate for number, rate in enumerate(rates)})
    assert run.told == []


@settings(max_examples=200, deadline=None)
@given(rates=st.lists(RATES, min_size=2, max_size=9))
def test_a_pace_is_over_the_median_of_all_others(rates: Sequence[float | None]) -> None:
    """Gathered anew for each replica here, since that is what it means."""
    can_be = [
        r if r == 0.0 or (r is not None and RATE_MIN <= r <= RATE_MAX) else None for r in rates
    ]
    found = race("tell").look({f"r{number}": rate for number, rate in enumerate(rates)})
    for number, one in enumerate(found):
        rate, others = can_be[number], [r for r in can_be[:number] + can_be[number + 1 :] if r]
        assert one.pace == (rate / median(others) if rate is not None and others else None)
