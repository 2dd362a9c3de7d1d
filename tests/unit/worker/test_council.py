"""Ranks that wait together: what one has later, or otherwise, all act on alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import pytest

from syncline import council
from syncline.core.agreement import Answer, Conclusion, Order, Step
from syncline.council import SLICE_S, Council
from syncline.exchange import Exchange
from syncline.patience import Pauses
from syncline.pulled import Pulled
from syncline.push import Outcome, Wanted
from syncline.ranks import Ranks
from syncline.recall import OTHER, OWN, Recall
from syncline.tally import Tally
from syncline_proto.ranges import NOTHING, Range, Ranges
from syncline_proto.v1 import sync_pb2 as pb


@dataclass
class Table:
    """Where the ranks of a test, threads of one process, put down their numbers."""

    count: int
    numbers: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.count, timeout=20)


@dataclass
class Seat:
    """One rank at the table: as much of ``Ranks`` as a council uses."""

    table: Table
    index: int
    gathered: int = 0

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def count(self) -> int:
        return self.table.count

    def gather(self, numbers: list[int]) -> list[list[int]]:
        self.gathered += 1
        self.table.barrier.wait()
        self.table.numbers[self.index] = numbers
        self.table.barrier.wait()
        told = [self.table.numbers[rank] for rank in range(self.table.count)]
        self.table.barrier.wait()
        return told

    def share(self, make: Callable[[], Ranges]) -> list[list[int]]:
        """As it comes through JSON."""
        told = self.gather([number for one in make() for number in one] if self.first else [])
        return [told[0][at : at + 3] for at in range(0, len(told[0]), 3)]


class Shelf:
    """An exchange from which every revision can be pulled at once."""

    def __init__(self, epoch: int) -> None:
        self.pauses, self.epoch = Pauses(), epoch

    def waits_for_others(self, fragment: int) -> bool:
        return True

    def begin_pull(self, fragment: int, wanted: Wanted) -> Future[Outcome]:
        assert wanted.revision is not None
        return done(Answer.MERGED, wanted.revision, self.epoch)


def done(answer: Answer, revision: int, epoch: int = 1) -> Future[Outcome]:
    future: Future[Outcome] = Future()
    header = pb.PullHeader(revision=revision, epoch=epoch)
    future.set_result(Outcome(answer=answer, pulled=Pulled(header, np.zeros(1, np.float32), 0.0)))
    return future


def concluded(
    *futures: Future[Outcome],
    order: Callable[[], Order] = lambda: Order.GO_ON,
    until: float | None = None,
    epoch: int = 1,
) -> list[tuple[Conclusion, Outcome]]:
    table = Table(len(futures))

    def rank(index: int) -> tuple[Conclusion, Outcome]:
        ranks = cast(Ranks, Seat(table, index))
        council = Council(ranks, cast(Exchange, Shelf(epoch)), order, Recall(), Tally())
        return council.conclude(0, futures[index], until)

    with ThreadPoolExecutor(len(futures)) as pool:
        return list(pool.map(rank, range(len(futures))))


def test_a_late_push_stays_late_when_another_revision_is_fetched() -> None:
    for conclusion, outcome in concluded(done(Answer.STALE, 2), done(Answer.STALE, 3)):
        assert (conclusion.step, conclusion.revision) == (Step.REBASE, 3)
        assert outcome.pulled is not None
        assert outcome.pulled.header.revision == 3
        assert outcome.answer is Answer.STALE


def test_ranks_that_saw_different_revisions_end_with_the_newest() -> None:
    ends = concluded(done(Answer.MERGED, 5), done(Answer.STALE, 4), done(Answer.MERGED, 5))
    for conclusion, outcome in ends:
        assert (conclusion.step, conclusion.revision) == (Step.MERGE, 5)
        assert outcome.pulled is not None
        assert outcome.pulled.header.revision == 5


@pytest.mark.parametrize("there", [4, 5])
def test_what_went_into_a_revision_that_is_lost_is_late_for_all_ranks(there: int) -> None:
    """The service was killed between two ranks' pulls, and went back; or on, to another value."""
    ends = concluded(done(Answer.MERGED, 5), done(Answer.STALE, there, epoch=2), epoch=2)
    for conclusion, outcome in ends:
        assert (conclusion.step, conclusion.epoch) == (Step.REBASE, 2)
        assert outcome.pulled is not None
        assert (outcome.pulled.header.epoch, outcome.pulled.header.revision) == (2, there)


def test_what_a_late_push_has_is_still_its_own_where_the_epoch_has_ended() -> None:
    """Who keeps it, to send it again, gives its memory back; and nobody else as well."""
    kept: Future[Outcome] = Future()
    kept.set_result(replace(done(Answer.MERGED, 5).result(), is_kept=True))
    ends = concluded(kept, done(Answer.STALE, 5, epoch=2), epoch=2)
    assert [outcome.is_kept for _, outcome in ends] == [True, False]


@pytest.mark.parametrize("knows", [0, 1])
@pytest.mark.parametrize("answer", [Answer.MERGED, Answer.STALE])
@pytest.mark.parametrize("epoch", [1, 2])
def test_all_ranks_have_the_lost_data_that_rank_0_knows_of(
    knows: int, answer: Answer, epoch: int
) -> None:
    """One that hears of it earlier or later than rank 0 does not name other data."""
    ends = [done(answer, 5), done(answer, 6, epoch=epoch)]
    lost = (Range(0, 4, 8), Range(1, 0, 2))
    knowing: Future[Outcome] = Future()
    knowing.set_result(replace(ends[knows].result(), lost=lost))
    ends[knows] = knowing
    agreed = NOTHING if knows else lost
    assert [outcome.lost for _, outcome in concluded(*ends, epoch=epoch)] == [agreed] * 2


def test_what_went_into_a_revision_that_was_not_lost_is_merged_for_all_ranks() -> None:
    """The service began a new epoch for nothing: it knows the push, and says so."""
    ends = concluded(done(Answer.MERGED, 5), done(Answer.MERGED, 5, epoch=2), epoch=2)
    assert [conclusion.step for conclusion, _ in ends] == [Step.MERGE] * 2


def test_a_rank_that_waits_holds_back_the_others_until_rank_0_gives_up() -> None:
    orders = iter([Order.GO_ON, Order.HOLD])
    ends = concluded(done(Answer.MERGED, 1), Future(), order=lambda: next(orders, Order.ABANDON))
    assert [conclusion.step for conclusion, _ in ends] == [Step.ABANDON] * 2


def test_whichever_rank_is_asked_to_leave_amid_a_wait_rank_0_hears_of_it() -> None:
    table, recalls = Table(2), (Recall(), Recall())
    recalls[1].set()
    orders = iter([Order.GO_ON] * 3)

    def rank(index: int) -> Conclusion:
        def order() -> Order:
            return Order.ABANDON if recalls[0].is_set() else next(orders, Order.STOP)

        seat, shelf = cast(Ranks, Seat(table, index)), cast(Exchange, Shelf(1))
        return Council(seat, shelf, order, recalls[index], Tally()).conclude(0, Future())[0]

    with ThreadPoolExecutor(2) as pool:
        assert [end.step for end in pool.map(rank, range(2))] == [Step.ABANDON] * 2
    assert [recall.asker for recall in recalls] == [OTHER, OWN]


def test_too_few_replicas_are_waited_for_as_in_a_pause_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pause explains itself; who lacks is for the log to say."""
    monkeypatch.setattr(council, "LONG_S", 0.0)
    for order, said in ((Order.SHORT, 1), (Order.HOLD, 0)):
        shelf, heard, seen = Shelf(1), list[bool](), list[None]()

        def told(order: Order = order, shelf: Shelf = shelf, heard: list[bool] = heard) -> Order:
            heard.append(shelf.pauses.is_on)
            return order if len(heard) < 4 else Order.ABANDON

        tally, seat = Tally(), cast(Ranks, Seat(Table(1), 0))
        asked = Council(seat, cast(Exchange, shelf), told, Recall(), tally)
        asked.conclude(0, Future(), on_long=lambda seen=seen: seen.append(None))
        assert heard[:3] == [False, True, True], "the time does not count"
        assert not shelf.pauses.is_on and tally.paused_s > 0
        assert len(seen) == said


def test_a_wait_counts_as_it_goes_on_and_its_pauses_for_themselves() -> None:
    """Who waits for most of its time tells of it amid a wait, and never takes that back."""
    tally, shelf, future = Tally(exposed_s=5.0), Shelf(1), Future[Outcome]()
    orders = [Order.GO_ON, Order.GO_ON, Order.HOLD, Order.HOLD, Order.GO_ON]
    seen: list[tuple[float, float]] = []

    def told() -> Order:
        seen.append((tally.exposed_s, tally.paused_s))
        if len(seen) == len(orders):
            future.set_result(done(Answer.MERGED, 1).result())
        return orders[min(len(seen), len(orders)) - 1]

    seat = cast(Ranks, Seat(Table(1), 0))
    council = Council(seat, cast(Exchange, shelf), told, Recall(), tally)
    before = time.perf_counter()
    assert council.conclude(0, future)[0].step is Step.MERGE
    assert tally.exposed_s - 5.0 + tally.paused_s <= time.perf_counter() - before
    exposed = [exposed_s for exposed_s, _ in seen]
    assert exposed == sorted(exposed) and exposed[1] - exposed[0] > SLICE_S / 2
    assert exposed[3] == exposed[4] and seen[2][1] == 0.0
    assert tally.paused_s > SLICE_S


def test_past_the_limit_all_ranks_give_up_together() -> None:
    ends = concluded(Future(), Future(), until=time.monotonic() + 0.3)
    assert [conclusion.step for conclusion, _ in ends] == [Step.ABANDON] * 2


def of_all(*flights: list[Future[Outcome]]) -> list[tuple[list[Conclusion], int]]:
    """What each rank concludes of its flights, one fragment after another, in how many talks."""
    table = Table(len(flights))

    def rank(index: int) -> tuple[list[Conclusion], int]:
        seat, orders = Seat(table, index), iter([Order.GO_ON] * 2)
        council = Council(
            cast(Ranks, seat),
            cast(Exchange, Shelf(1)),
            lambda: next(orders, Order.ABANDON),
            Recall(),
            Tally(),
        )
        own = dict(enumerate(flights[index]))
        ends = [council.conclude(f, future, beside=own)[0] for f, future in own.items()]
        return ends, seat.gathered

    with ThreadPoolExecutor(len(flights)) as pool:
        return list(pool.map(rank, range(len(flights))))


def test_of_fragments_that_have_all_come_the_ranks_talk_once() -> None:
    """And not at each layer of a forward pass."""
    here = [done(Answer.MERGED, 1), done(Answer.STALE, 2), done(Answer.MERGED, 3)]
    for ends, talks in of_all(here, list(here)):
        assert [end.step for end in ends] == [Step.MERGE, Step.REBASE, Step.MERGE]
        assert [end.revision for end in ends] == [1, 2, 3]
        assert talks == 1


def test_a_fragment_that_a_rank_lacks_or_has_otherwise_is_talked_of_when_it_is_its_turn() -> None:
    mine = [done(Answer.MERGED, 1), done(Answer.MERGED, 2), done(Answer.MERGED, 3)]
    other = [done(Answer.MERGED, 1), done(Answer.MERGED, 3), Future[Outcome]()]
    for ends, talks in of_all(mine, other):
        assert [end.step for end in ends] == [Step.MERGE, Step.MERGE, Step.ABANDON]
        assert [end.revision for end in ends[:2]] == [1, 3]
        assert talks > 2


def test_what_was_foreseen_of_another_exchange_counts_for_nothing() -> None:
    """A fragment may be pushed anew before anybody asked what became of the push before."""
    table = Table(2)

    def rank(index: int) -> Conclusion:
        seat, shelf = cast(Ranks, Seat(table, index)), cast(Exchange, Shelf(1))
        council = Council(seat, shelf, lambda: Order.GO_ON, Recall(), Tally())
        before = {0: done(Answer.MERGED, 1), 1: done(Answer.MERGED, 1)}
        council.conclude(0, before[0], beside=before)
        return council.conclude(1, done(Answer.MERGED, 2))[0]

    with ThreadPoolExecutor(2) as pool:
        assert [end.revision for end in pool.map(rank, range(2))] == [2, 2]
