"""How the ranks of a replica become of one mind about a fragment.

Pure. Every rank waits for its own answer and tells all others what it has; from equal reports
every rank draws the equal conclusion, so no further word is needed. Rank 0 alone hears from the
control plane, and its ``order`` is part of its report; that a rank was asked to leave is part of
its own, for rank 0 to hear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum


class Answer(IntEnum):
    """What a rank knows of its push."""

    WAITING = 0
    MERGED = 1
    """The revision holds what was pushed (or gives it weight 0): take it as it is."""
    STALE = 2
    """The revision does not hold what was pushed: move the progress onto it, push again."""
    GONE = 3
    """The synchronous phase went on, or started again, without us."""
    FENCED = 4
    FAILED = 5


class Order(IntEnum):
    """What rank 0 wants of the wait."""

    GO_ON = 0
    ABANDON = 1
    """The run has ended, or the time for it is up: leave the parameters as they are."""
    STOP = 2
    """The lease is lost: the replica ends with an error."""
    HOLD = 3
    """The run is paused: go on waiting, and do not count the time."""
    SHORT = 4
    """The run has fewer than its ``min_replicas``: likewise, and say what is waited for."""


class Step(IntEnum):
    """What all ranks do next."""

    WAIT = 0
    FETCH = 1
    """Ranks that hold an older revision than the agreed one pull that one, then report again."""
    MERGE = 2
    REBASE = 3
    REJOIN = 4
    """Take part again from where the run stands now."""
    ABANDON = 5
    STOP = 6
    FAIL = 7


@dataclass(frozen=True, slots=True)
class Report:
    """One rank's word, as numbers that fit a collective."""

    answer: Answer
    revision: int = 0
    non_finite: bool = False
    order: Order = Order.GO_ON
    epoch: int = 0
    """Of the revision."""
    asked: bool = False
    """Somebody has asked this rank to leave."""
    has_lost: bool = False
    """An earlier push was lost for good, and with it leased data that it named."""

    @property
    def value(self) -> tuple[int, int]:
        """Which value it holds, so that a newer one is larger: revisions go back with an epoch."""
        return self.epoch, self.revision

    def to_ints(self) -> list[int]:
        of_value = [self.answer, self.revision, self.non_finite, self.order, self.epoch]
        return [*of_value, self.asked, self.has_lost]

    @classmethod
    def from_ints(cls, numbers: Sequence[int]) -> Report:
        answer, revision, non_finite, order, epoch, asked, lost = numbers
        of_value = Answer(answer), revision, bool(non_finite), Order(order), epoch
        return cls(*of_value, bool(asked), bool(lost))

    @classmethod
    def many_from_ints(cls, numbers: Sequence[int]) -> list[Report]:
        """One rank's reports that came as one row."""
        each = len(fields(cls))
        return [cls.from_ints(numbers[at : at + each]) for at in range(0, len(numbers), each)]


@dataclass(frozen=True, slots=True)
class Conclusion:
    step: Step
    revision: int = 0
    """The one to take, with FETCH, MERGE and REBASE."""
    non_finite: bool = False
    epoch: int = 0
    """Of that revision."""
    has_lost: bool = False
    """Rank 0 tells all which data an earlier push has lost; with MERGE and REBASE."""


def conclude(reports: Sequence[Report]) -> Conclusion:
    """Draw the conclusion from the reports of all ranks, in the order of ranks.

    A failure comes first, then the end of the lease, then rank 0's wish to abandon. The service
    judges a push once for all ranks, so ranks that differ do so because one of them asked later:
    the newest revision that any of them has is taken, as merged if any of them saw it merged. A
    rank that has to fetch one of a later epoch has seen nothing merged: it went with its epoch.
    Ranks may learn at different times that an earlier push is lost, so rank 0's word counts.
    """
    answers = [report.answer for report in reports]
    if Answer.FAILED in answers:
        return Conclusion(Step.FAIL)
    if Answer.FENCED in answers or reports[0].order == Order.STOP:
        return Conclusion(Step.STOP)
    if Answer.WAITING in answers:
        return Conclusion(Step.ABANDON if reports[0].order == Order.ABANDON else Step.WAIT)
    if Answer.GONE in answers:
        return Conclusion(Step.REJOIN)
    newest = max(report.value for report in reports)
    epoch, revision = newest
    if any(report.value != newest for report in reports):
        return Conclusion(Step.FETCH, revision, epoch=epoch)
    step = Step.MERGE if Answer.MERGED in answers else Step.REBASE
    non_finite = any(report.non_finite for report in reports)
    return Conclusion(step, revision, non_finite, epoch, reports[0].has_lost)
