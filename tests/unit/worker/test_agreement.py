"""Ranks draw one conclusion from their reports, and a wait always ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syncline.core.agreement import Answer, Order, Report, Step, conclude

REPORTS = st.lists(
    st.builds(
        Report,
        answer=st.sampled_from(Answer),
        revision=st.integers(0, 3),
        non_finite=st.booleans(),
        order=st.sampled_from(Order),
        epoch=st.integers(1, 2),
        asked=st.booleans(),
        has_lost=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@given(REPORTS)
def test_a_report_survives_the_collective(reports: list[Report]) -> None:
    assert [Report.from_ints(report.to_ints()) for report in reports] == reports


@given(REPORTS)
def test_values_are_taken_only_if_every_rank_holds_the_same_revision(reports: list[Report]) -> None:
    found = conclude(reports)
    if found.step in (Step.MERGE, Step.REBASE):
        assert {report.value for report in reports} == {(found.epoch, found.revision)}
        assert {report.answer for report in reports} <= {Answer.MERGED, Answer.STALE}


@given(REPORTS)
def test_a_rank_that_fetches_what_was_concluded_ends_the_fetching(reports: list[Report]) -> None:
    found = conclude(reports)
    if found.step is Step.FETCH:
        assert all(report.value <= (found.epoch, found.revision) for report in reports)
        after = [
            Report(r.answer, found.revision, r.non_finite, r.order, found.epoch) for r in reports
        ]
        assert conclude(after).step in (Step.MERGE, Step.REBASE)


@given(REPORTS)
def test_while_a_rank_waits_nothing_is_written(reports: list[Report]) -> None:
    if any(report.answer is Answer.WAITING for report in reports):
        ends = (Step.WAIT, Step.ABANDON, Step.STOP, Step.FAIL)
        assert conclude(reports).step in ends


def test_only_rank_0_gives_orders() -> None:
    waiting = Report(Answer.WAITING)
    assert conclude([waiting, Report(Answer.WAITING, order=Order.STOP)]).step is Step.WAIT
    assert conclude([Report(Answer.WAITING, order=Order.STOP), waiting]).step is Step.STOP
    assert conclude([Report(Answer.WAITING, order=Order.ABANDON), waiting]).step is Step.ABANDON


def test_what_one_rank_saw_merged_is_merged_for_all() -> None:
    found = conclude([Report(Answer.STALE, 3), Report(Answer.MERGED, 3, non_finite=True)])
    assert (found.step, found.revision, found.non_finite) == (Step.MERGE, 3, True)
