"""The ranks' council on one fragment: wait together, then draw one conclusion.

A wait is cut into slices. After each, all ranks tell what they have (core/agreement), so Ctrl+C is
heard, what rank 0 hears from the control plane reaches a rank that waits, and rank 0 hears which of
them was asked to leave. They tell of other fragments that are pending, too: where all has come, one
word is enough for a whole forward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace

from syncline.core.agreement import Answer, Conclusion, Order, Report, Step, conclude
from syncline.exchange import Exchange
from syncline.pulled import Pulled
from syncline.push import Outcome, Wanted
from syncline.ranks import Ranks
from syncline.recall import Recall
from syncline.tally import Tally
from syncline_proto.ranges import NOTHING, Range

SLICE_S = 0.25

LONG_S = 10.0
"""So long nobody wonders whether something hangs."""

WAITING = Outcome(answer=Answer.WAITING)

Futures = Mapping[int, Future[Outcome]]
"""Exchanges by fragment; all ranks have the same fragments, in the same order."""
NONE: Futures = {}


class Council:
    """Conclusions that are equal on all ranks."""

    def __init__(
        self,
        ranks: Ranks,
        exchange: Exchange,
        order: Callable[[], Order],
        recall: Recall,
        tally: Tally,
    ) -> None:
        """``order`` is what rank 0 wants of a wait, asked after each slice, and only there.

        ``recall`` is set when somebody asks the replica to leave, on any rank; then on all.
        ``tally`` is told of each slice: training stood still, or the run was paused, or had too few
        replicas.
        """
        self._tally = tally
        self._ranks, self._exchange = ranks, exchange
        self._order, self._recall = order, recall
        self._foreseen: dict[int, tuple[Future[Outcome], Conclusion]] = {}
        """What was concluded of a fragment while another was waited for."""

    def conclude(
        self,
        fragment: int,
        future: Future[Outcome],
        until: float | None = None,
        on_long: Callable[[], None] | None = None,
        beside: Futures = NONE,
    ) -> tuple[Conclusion, Outcome]:
        """Wait for an exchange on all ranks, and see what else has come of those ``beside`` it.

        With MERGE and REBASE the outcome holds the concluded revision. Past ``until`` (of
        ``time.monotonic``; None: the exchange's own bounds) the conclusion is ABANDON. ``on_long``
        is called once, after a wait of ``LONG_S`` for others alone: the push is in, the service
        there, and the run not paused.
        """
        known = self._foreseen.pop(fragment, None)
        if known is not None and known[0] is future:
            return known[1], self._agreed(known[1], future.result())
        long_at = time.monotonic() + LONG_S
        pushed: Outcome | None = None
        while True:
            began, paused = time.perf_counter(), self._exchange.pauses.is_on
            outcome = _within(future, SLICE_S)
            if pushed is not None and outcome.pulled is not None:
                outcome = _fetched(pushed, outcome.pulled)
            order = self._order() if self._ranks.first else Order.GO_ON
            if until is not None and time.monotonic() > until and order is not Order.STOP:
                order = Order.ABANDON
            mine = replace(_report(outcome, order), asked=self._recall.is_set())
            told = self._told(mine, {f: one for f, one in beside.items() if f != fragment})
            self._exchange.pauses.set(told[0].order in (Order.HOLD, Order.SHORT))
            self._count(time.perf_counter() - began, paused)
            conclusion = conclude(told)
            if conclusion.step is Step.FETCH:
                if mine.value != (conclusion.epoch, conclusion.revision):
                    pushed = outcome
                    future = self._exchange.begin_pull(fragment, Wanted(conclusion.revision))
            elif conclusion.step is not Step.WAIT:
                self._exchange.pauses.set(False)
                return conclusion, self._agreed(conclusion, outcome)
            if on_long is None:
                continue
            if told[0].order is Order.HOLD or not self._exchange.waits_for_others(fragment):
                long_at = time.monotonic() + LONG_S
            elif time.monotonic() > long_at:
                on_long()
                on_long = None

    def _count(self, seconds: float, paused: bool) -> None:
        """Slice by slice: a heartbeat amid a long wait tells of it, and never takes that back."""
        if paused:
            self._tally.paused_s += seconds
        else:
            self._tally.exposed_s += seconds

    def _agreed(self, conclusion: Conclusion, outcome: Outcome) -> Outcome:
        """With the data that rank 0 knows to be lost, on all ranks."""
        if not conclusion.has_lost:
            return replace(outcome, lost=NOTHING)
        lost = self._ranks.share(lambda: outcome.lost)
        return replace(outcome, lost=tuple(Range(*one) for one in lost))

    def _told(self, mine: Report, beside: Futures) -> list[Report]:
        """What all ranks report; on the way, all conclude what can be concluded of the others."""
        if self._ranks.count == 1:
            return [mine]
        others = {f: one for f, one in beside.items() if f not in self._foreseen}
        reports = [mine, *(_report(_so_far(one), Order.GO_ON) for one in others.values())]
        told = self._ranks.gather([number for report in reports for number in report.to_ints()])
        first, *rest = zip(*map(Report.many_from_ints, told), strict=True)
        for (fragment, one), of_it in zip(others.items(), rest, strict=True):
            conclusion = conclude(of_it)
            if conclusion.step in (Step.MERGE, Step.REBASE):
                self._foreseen[fragment] = one, conclusion
        self._recall.hear(report.asked for report in first)
        return list(first)


def _within(future: Future[Outcome], seconds: float) -> Outcome:
    wait((future,), seconds)  # to ask for its result would take its own TimeoutError for ours
    return _so_far(future)


def _so_far(future: Future[Outcome]) -> Outcome:
    return future.result() if future.done() else WAITING


def _fetched(pushed: Outcome, pulled: Pulled) -> Outcome:
    """What became of a push, where another revision was fetched: the same, within an epoch.

    One that went into a revision of an epoch that has ended went into nothing.
    """
    assert pushed.pulled is not None
    if pulled.header.epoch == pushed.pulled.header.epoch:
        return replace(pushed, pulled=pulled)
    kept, lost = pushed.is_kept, pushed.lost
    return Outcome(answer=Answer.STALE, pulled=pulled, is_kept=kept, lost=lost)


def _report(outcome: Outcome, order: Order) -> Report:
    if outcome.pulled is None:
        return Report(outcome.answer, 0, outcome.non_finite, order)
    header = outcome.pulled.header
    report = Report(outcome.answer, header.revision, outcome.non_finite, order, header.epoch)
    return replace(report, has_lost=bool(outcome.lost))
