"""Leased data: sequences asked for, given back, and done as sync services tell of rounds.

The core's ledger decides; rows remember. It holds all of a run's data that is under way, which is a
few ranges for each replica (``books``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

from sqlalchemy import func, select

from syncline_control.core.coverage import counts, held
from syncline_control.core.ledger import Push
from syncline_control.core.shares import SPANS_MAX
from syncline_control.core.spans import Life
from syncline_control.operations import replicas, runs, settling
from syncline_control.operations.books import Book
from syncline_control.tables import Fragment, Run
from syncline_control.transaction import Transaction
from syncline_proto.counts import FRAGMENTS_MAX
from syncline_proto.errors import DataMismatch, Overloaded
from syncline_proto.leased import (
    DataAsk,
    DataGrant,
    Dataset,
    DataView,
    EpochView,
    HolderView,
)
from syncline_proto.ranges import Range, Ranges, check, count, joined
from syncline_proto.reports import RoundReport
from syncline_proto.stretches import Stretch, Stretches, added

EPOCHS_SHOWN = 100


def ask(tx: Transaction, run: str, replica: str, body: DataAsk) -> DataGrant:
    """Lease sequences to a replica that holds its lease, which this renews.

    Raises:
        RunUnknown, ReplicaUnknown, RunConflict: there is no such run or replica, or it has ended.
        LeaseLost: this incarnation does not hold its lease any more.
        DataMismatch: the run's data is another.
        InvalidRequest: what is returned is no set of ranges.
        Overloaded: the run has begun, and what its fragments have is not known here yet; or what is
            returned would leave its data in too many pieces.
    """
    run_row, row = replicas.find(tx, run, replica)
    if body.want:
        runs.refuse_if_ended(run_row)
    replicas.renew(tx, row, body.incarnation)
    check(body.returned, "returned")
    _fix_dataset(tx, run_row, body.dataset)
    life = Life(replica, body.incarnation)
    book = Book(tx, run_row, life, with_done=False)
    book.see_lives()
    _take_back(book, life, tuple(body.returned))
    number, ranges = book.ledger.granted(life, body.after)
    if not ranges and body.want:
        if body.begun:
            _refuse_until_told(tx, run_row)
        number = body.after + 1
        ranges = book.ledger.grant(life, number, body.want, book.others)
    book.close()
    return DataGrant(number=number if ranges else body.after, ranges=list(ranges))


def _take_back(book: Book, life: Life, returned: Ranges) -> None:
    """
    Raises:
        Overloaded: it would leave the run's data in too many pieces.
    """
    before = len(book.ledger.spans)
    book.ledger.take_back(life, returned)
    now = len(book.ledger.spans)
    if now > before and now + book.others > SPANS_MAX:
        raise Overloaded(
            f"The run's data would be in over {SPANS_MAX} pieces; give back all that you hold, or "
            "push what you have read first."
        )


def _refuse_until_told(tx: Transaction, run_row: Run) -> None:
    """A database that is new to a run must not lease again what the run's fragments have.

    Raises:
        Overloaded: sync services have not told of every fragment; they do within seconds.
    """
    query = select(func.count()).select_from(Fragment)
    is_own = Fragment.number < (run_row.fragments or FRAGMENTS_MAX)
    is_told = (Fragment.run_id == run_row.id) & is_own & (Fragment.settled >= 0)
    known = tx.session.scalar(query.where(is_told)) or 0
    if not run_row.fragments or known < run_row.fragments:
        of = f" of {run_row.fragments}" if run_row.fragments else ""
        raise Overloaded(
            f"Sync services have told of {known}{of} fragments of run {run_row.name} so far, and "
            "what the others were trained on is not known; ask again in a second."
        )


def told(tx: Transaction, run_row: Run, reports: Iterable[RoundReport]) -> None:
    """Take in what sync services tell of data; telling it again changes nothing."""
    reports = list(reports)
    if not any(_has_data(report) for report in reports):
        return
    if run_row.dataset is None:
        _keep_for_later(tx, run_row, reports)
        return
    book = Book(tx, run_row)
    until = tx.now + settling.settle_s(runs.settings_of(run_row))
    covered: dict[tuple[Ranges, bool, Life], int] = defaultdict(int)

    def cover() -> None:
        """Together: most fragments tell the same, as what a replica has read goes into all."""
        pushes = (Push(bits, *what) for what, bits in covered.items())
        book.ledger.cover(pushes, until)
        covered.clear()

    stands = {one.fragment: at for at, one in enumerate(reports) if one.data is not None}
    for at, report in enumerate(reports):
        bit = 1 << report.fragment
        for one in report.contributions:
            if one.data:
                life = Life(one.replica, one.incarnation)
                covered[joined(one.data), one.verdict == "accepted", life] |= bit
        if report.data is not None and stands[report.fragment] == at:  # the last says it all
            cover()
            trained, excluded = tuple(report.data.trained), tuple(report.data.excluded)
            book.ledger.stands(bit, trained, excluded, until)
    cover()
    book.see_lives()  # not before: what came in time is not free
    book.close()


def view(tx: Transaction, run: str) -> DataView:
    """Return how far the run has come in its data."""
    run_row = runs.find(tx, run)
    if run_row.dataset is None:
        return DataView()
    dataset = Dataset.model_validate_json(run_row.dataset)
    book = Book(tx, run_row)
    book.see_lives()
    ledger = book.ledger
    holders: dict[str, int] = defaultdict(int)
    for span in ledger.spans:
        if span.life is not None:
            holders[span.life.replica] += count((span.range,))
    epochs = [EpochView(**one._asdict()) for one in counts(ledger, EPOCHS_SHOWN)]
    return DataView(
        dataset=dataset,
        epoch=ledger.epoch,
        trained=count(ledger.done.trained),
        excluded=count(ledger.done.excluded),
        leased=count(held(ledger)),
        epochs=epochs,
        epochs_left_out=epochs[0].epoch if epochs else 0,
        holders=[
            HolderView(replica=replica, sequences=so_many)
            for replica, so_many in sorted(holders.items())
        ],
    )


def _fix_dataset(tx: Transaction, run_row: Run, asked: Dataset) -> None:
    """The first who asks fixes what the run's data is.

    Raises:
        DataMismatch: somebody has said otherwise.
    """
    if run_row.dataset is not None:
        ours = Dataset.model_validate_json(run_row.dataset)
        difference = _difference(ours, asked)
        if difference is None:
            if asked.content and not ours.content:
                run_row.dataset = asked.model_dump_json()  # it has a name now
            return
        what, mine, theirs = difference
        if not _gives_way(tx, run_row, f"{what} is {theirs}, and was {mine}"):
            raise DataMismatch(
                f"The data of run {run_row.name} is another: {what} is {mine} there, and "
                f"{theirs} here. Give every replica the same data, or let each read data of "
                "its own (replica.shard; in a job data.leased = false). A run keeps the data "
                "that it has trained on; before that it takes other data once nobody holds any."
            )
    run_row.dataset = asked.model_dump_json()
    rows = tx.session.scalars(select(Fragment).where(Fragment.run_id == run_row.id)).all()
    book = Book(tx, run_row)
    for row in rows:
        if row.data is not None:
            trained, excluded = _kept(row)
            book.ledger.stands(1 << row.number, trained, excluded, tx.now)
            row.data = None
    book.close()
    tx.session.flush()


def _difference(ours: Dataset, asked: Dataset) -> tuple[str, object, object] | None:
    """What of two datasets is first to differ, and how; content, where both name it."""
    for what in ("sequences", "seed", "content"):
        mine, theirs = getattr(ours, what), getattr(asked, what)
        if mine != theirs and (what != "content" or (mine and theirs)):
            return what, mine, theirs
    return None


def _gives_way(tx: Transaction, run_row: Run, how: str) -> bool:
    """Whether the run takes other data than it was begun with; what it had is forgotten then."""
    if _is_committed(tx, run_row):
        return False
    book = Book(tx, run_row)
    book.see_lives()
    book.close()
    if not book.ledger.is_untouched:
        return False
    message = f"The run's data is another now ({how}); nothing of the old was trained."
    tx.record("data.changed", message, run=run_row.name)
    book.forget()
    return True


def _is_committed(tx: Transaction, run_row: Run) -> bool:
    """Whether any fragment has a push in it; then its service may tell of data at any time."""
    has_push = (Fragment.revision > 0) | (Fragment.committed_tokens > 0)
    query = select(Fragment.number).where(Fragment.run_id == run_row.id, has_push).limit(1)
    return tx.session.scalar(query) is not None


def _keep_for_later(tx: Transaction, run_row: Run, reports: list[RoundReport]) -> None:
    """Nobody has said yet what the data is: remember what of it is in each fragment."""
    told: dict[int, list[RoundReport]] = defaultdict(list)
    for report in reports:
        if _has_data(report):
            told[report.fragment].append(report)
    for fragment, of_it in told.items():
        row = tx.session.get(Fragment, (run_row.id, fragment))
        if row is None:
            continue
        trained, excluded = _kept(row)
        # Together: to read and write all of it for each report could hold up every run.
        counted, bad = list[Range](), list[Range]()
        for report in of_it:
            if report.data is not None:
                trained, excluded = tuple(report.data.trained), tuple(report.data.excluded)
                counted, bad = [], []
            for one in report.contributions:
                (counted if one.verdict == "accepted" else bad).extend(one.data)
        row.data = json.dumps([added(trained, counted), added(excluded, bad)])


def _has_data(report: RoundReport) -> bool:
    return report.data is not None or any(one.data for one in report.contributions)


def _kept(row: Fragment) -> tuple[Stretches, Stretches]:
    if row.data is None:
        return (), ()
    trained, excluded = json.loads(row.data)
    return tuple(Stretch(*one) for one in trained), tuple(Stretch(*one) for one in excluded)
