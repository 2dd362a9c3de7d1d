"""Who straggles is named, given fewer steps, and only then let go; whatever replicas measure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from syncline_control.core.stragglers import Mark, Sample, Verdict, look
from syncline_proto.straggling import StragglerSettings

LOOK_S = 5.0


@dataclass
class Race:
    """Replicas that are looked at again and again; who is let go is leaving from then on."""

    rules: StragglerSettings
    least: int = 1
    shares: bool = True
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
        found = look(self.now, samples, self.rules, self.least, self.shares)
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


def race(policy: str = "tell", least: int = 1, shares: bool = True, **rules: Any) -> Race:
    made = StragglerSettings(policy=policy, **rules)  # type: ignore[arg-type]
    return Race(made, least=least, shares=shares)


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


def test_by_time_everybody_makes_as_many_as_he_can() -> None:
    run = race("let-go", shares=False).go_on(9_999.0, a=2.0, b=2.0, c=0.1)
    assert run.told == [("replica.straggles", "c")]


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
    shares=st.booleans(),
)
def test_whatever_is_measured_the_order_is_kept(
    looks: Sequence[Sequence[float | None]], policy: str, least: int, shares: bool
) -> None:
    run = race(policy, least, shares, seconds=10.0, let_go_seconds=20.0)
    for rates in looks:
        names = [f"r{number}" for number in range(len(rates))]
        staying = sum(name not in run.leaving for name in names)
        before = dict(run.marks)
        found = run.look(dict(zip(names, rates, strict=True)))
        gone = [one for one in found if one.let_go]
        assert len(gone) <= 1 and (not gone or staying > least), "the minimum stays"
        assert not gone or (policy, shares) == ("let-go", True)
        for one in found:
            assert one.pace is None or 0.0 <= one.pace < math.inf
            was = before.get(one.replica, Mark())
            assert run.rules.share_min <= one.mark.share <= 1.0
            assert one.mark.share == 1.0 or (one.mark.straggles and shares and policy != "tell")
            assert not one.let_go or (was.straggles and was.share == run.rules.share_min)
            kinds = [kind for kind, _ in one.events]
            assert ("replica.straggles" in kinds) == (one.mark.straggles and not was.straggles)
            assert ("replica.keeps_up" in kinds) == (was.straggles and not one.mark.straggles)
            assert ("replica.steps" in kinds) <= (one.mark.share != was.share)


@given(rates=st.lists(st.floats(0.7, 1.0), min_size=1, max_size=8))
def test_nobody_straggles_where_all_are_about_as_fast(rates: Iterable[float]) -> None:
    run = race("let-go")
    run.go_on(900.0, **{f"r{number}": rate for number, rate in enumerate(rates)})
    assert run.told == []
