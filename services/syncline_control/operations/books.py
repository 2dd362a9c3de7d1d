"""A run's ledger of leased data, as its rows have it, and back into them. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, cast

from sqlalchemy import Table, bindparam, delete, func, insert, select, update

from syncline_control.core.coverage import finished
from syncline_control.core.leases import HELD
from syncline_control.core.ledger import Done, Ledger
from syncline_control.core.spans import Life, Span
from syncline_control.operations import runs, settling
from syncline_control.tables import DataDone, DataSpan, Fragment, Plane, Replica, Run
from syncline_control.transaction import Transaction
from syncline_proto.leased import Dataset
from syncline_proto.ranges import Range, joined
from syncline_proto.rest import RunState

T = TypeVar("T")


class Book:
    """Opened with a transaction, and closed before its end if anything is to be kept."""

    def __init__(
        self, tx: Transaction, run_row: Run, life: Life | None = None, *, with_done: bool = True
    ) -> None:
        """The run has a dataset.

        With a ``life`` all is left out that others hold, who are there: enough to give it more, and
        far less where many are. What is done may be in thousands of pieces, and only who hears of
        pushes, or tells how far the run has come, needs it.
        """
        assert run_row.dataset is not None
        self._tx, self._run = tx, run_row
        self._spans = _spans(tx, run_row, life)
        self._done = _done(tx, run_row) if with_done else Done()
        self.ledger = Ledger(
            Dataset.model_validate_json(run_row.dataset).sequences,
            run_row.fragments,
            run_row.data_next,
            self._spans,
            self._done,
        )
        self._freed = 0

    @property
    def others(self) -> int:
        """How many spans were left out."""
        query = select(func.count()).select_from(DataSpan).where(DataSpan.run_id == self._run.id)
        return (self._tx.session.scalar(query) or 0) - len(self._spans)

    def see_lives(self) -> None:
        """Free what lost replicas held, once that has settled; ask services whether it has."""
        tx, run_row, before = self._tx, self._run, self.ledger.awaits
        alive, settings = _alive(tx, run_row), runs.settings_of(run_row)
        enough = len(alive) >= settings.min_replicas
        self._freed = self.ledger.see_lives(
            alive,
            tx.now,
            settling.settle_s(settings),
            rounds_close=enough and run_row.state == RunState.RUNNING,
            version=tx.session.get_one(Plane, 1).membership_version,
            settled=_settled(tx, run_row),
        )
        if self.ledger.awaits > before:
            tx.bump()  # the membership asks

    def close(self) -> None:
        """Write down what has changed, and tell of what people wait for."""
        tx, run_row, ledger = self._tx, self._run, self.ledger
        run_row.data_next = ledger.next
        self._write(DataSpan, _by_place(self._spans), _by_place(ledger.spans), _span_row)
        self._write(DataDone, _pieces(self._done), _pieces(ledger.done), _done_row)
        if self._freed:
            message = f"{self._freed:,} sequences of lost replicas can be read again."
            tx.record("data.returned", message, run=run_row.name)
        self._tell_epochs()

    def _write(
        self,
        table: type[DataSpan | DataDone],
        before: Mapping[int, T],
        now: Mapping[int, T],
        row: Callable[[T], dict[str, object]],
    ) -> None:
        """Write down those that changed, however many, in three statements at most.

        Each by where on the track it begins.
        """
        session, of = self._tx.session, {"run_id": self._run.id}
        rows = cast(Table, table.__table__)
        if gone := before.keys() - now.keys():
            is_gone = (rows.c.run_id == self._run.id) & (rows.c.start == bindparam("at"))
            session.execute(delete(rows).where(is_gone), [{"at": start} for start in gone])
        if kept := [one for at, one in now.items() if at in before and before[at] != one]:
            session.execute(update(table), [of | row(one) for one in kept])
        if new := now.keys() - before.keys():
            session.execute(insert(rows), [of | row(now[at]) for at in new])

    def forget(self) -> None:
        """Forget the run's data: nobody holds or has trained any."""
        run_row = self._run
        for table in (DataSpan, DataDone):
            self._tx.session.execute(delete(table).where(table.run_id == run_row.id))
        run_row.dataset, run_row.data_next = None, 0

    def _tell_epochs(self) -> None:
        """Tell of epochs that are done now."""
        for one in finished(self.ledger, self._done):
            is_one = one.until == one.epoch + 1
            what = f"Epoch {one.epoch:,} of the data is done"
            if not is_one:
                what = f"Epochs {one.epoch:,} to {one.until - 1:,} of the data are done"
            message = f"{what}: {one.trained:,} sequences were trained"
            message += f", and {one.excluded:,} excluded." if one.excluded else "."
            self._tx.record("data.epoch", message, run=self._run.name)


def see_lives(tx: Transaction, run_row: Run) -> None:
    """A life has ended: what it held settles from now on."""
    if run_row.dataset is not None:
        tx.session.flush()
        book = Book(tx, run_row, with_done=False)
        book.see_lives()
        book.close()


def _alive(tx: Transaction, run_row: Run) -> dict[str, int]:
    query = select(Replica.name, Replica.incarnation)
    held = query.where(Replica.run_id == run_row.id, Replica.state.in_(HELD))
    return {name: incarnation for name, incarnation in tx.session.execute(held)}


def _settled(tx: Transaction, run_row: Run) -> int | None:
    """As of which version all fragments have settled; None until all have been heard of."""
    is_own = (Fragment.run_id == run_row.id) & (Fragment.number < run_row.fragments)
    query = select(func.min(Fragment.settled), func.count()).where(is_own)
    settled, known = tx.session.execute(query).one()
    return settled if 0 < run_row.fragments <= known else None


def _spans(tx: Transaction, run_row: Run, life: Life | None) -> list[Span]:
    columns = select(
        DataSpan.start,
        DataSpan.stop,
        DataSpan.replica,
        DataSpan.incarnation,
        DataSpan.number,
        DataSpan.covered,
        DataSpan.own,
        DataSpan.folded,
        DataSpan.until,
        DataSpan.gone,
    ).where(DataSpan.run_id == run_row.id)
    if life is not None:
        is_nobodys = DataSpan.replica.is_(None) | DataSpan.until.is_not(None)
        columns = columns.where(is_nobodys | (DataSpan.replica == life.replica))
    return [
        Span(
            Range(0, start, stop),
            Life(replica, incarnation) if replica is not None else None,
            number,
            int(covered, 16),
            int(own, 16),
            folded,
            until,
            gone,
        )
        for start, stop, replica, incarnation, number, covered, own, folded, until, gone in (
            tx.session.execute(columns)
        )
    ]


def _by_place(spans: Iterable[Span]) -> dict[int, Span]:
    return {span.range.start: span for span in spans}


def _span_row(span: Span) -> dict[str, object]:
    return {
        "start": span.range.start,
        "stop": span.range.stop,
        "replica": span.life.replica if span.life else None,
        "incarnation": span.life.incarnation if span.life else 0,
        "number": span.grant,
        "covered": f"{span.covered:x}",
        "own": f"{span.own:x}",
        "folded": span.folded,
        "until": span.until,
        "gone": span.gone,
    }


def _done(tx: Transaction, run_row: Run) -> Done:
    columns = select(DataDone.start, DataDone.stop, DataDone.trained)
    rows = tx.session.execute(columns.where(DataDone.run_id == run_row.id)).all()
    return Done(
        *(
            joined(Range(0, start, stop) for start, stop, is_trained in rows if is_trained == kind)
            for kind in (True, False)
        )
    )


def _pieces(done: Done) -> dict[int, tuple[Range, bool]]:
    """Each range by where it begins, and whether it was trained."""
    kinds = ((done.trained, True), (done.excluded, False))
    return {one.start: (one, kind) for ranges, kind in kinds for one in ranges}


def _done_row(piece: tuple[Range, bool]) -> dict[str, object]:
    (_, start, stop), is_trained = piece
    return {"start": start, "stop": stop, "trained": is_trained}
