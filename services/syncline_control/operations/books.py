"""A run's ledger of leased data, as its rows have it, and back into them. Decides nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import cast

from sqlalchemy import Table, bindparam, delete, func, insert, select, update

from syncline_control.core.leases import HELD
from syncline_control.core.ledger import Done, Ledger
from syncline_control.core.spans import Life, Span
from syncline_control.operations import runs, settling
from syncline_control.tables import DataEpoch, DataSpan, Fragment, Plane, Replica, Run
from syncline_control.transaction import Transaction
from syncline_proto.leased import Dataset
from syncline_proto.ranges import Range, Ranges, count
from syncline_proto.rest import RunState


class Book:
    """Opened with a transaction, and closed before its end if anything is to be kept."""

    def __init__(self, tx: Transaction, run_row: Run, life: Life | None = None) -> None:
        """The run has a dataset.

        With a ``life`` all is left out that others hold, who are there: enough to give it more, and
        far less where many are.
        """
        assert run_row.dataset is not None
        self._tx, self._run = tx, run_row
        self._spans = _spans(tx, run_row, life)
        self._done = _done(tx, run_row) if life is None else {}
        self.ledger = Ledger(
            Dataset.model_validate_json(run_row.dataset).sequences,
            run_row.fragments,
            (run_row.data_epoch, run_row.data_position),
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
        run_row.data_epoch, run_row.data_position = ledger.next
        self._close_spans()
        for epoch, done in ledger.done.items():
            if done != self._done.get(epoch):
                row = DataEpoch(
                    run_id=run_row.id,
                    epoch=epoch,
                    trained=_text(done.trained),
                    excluded=_text(done.excluded),
                )
                tx.session.merge(row)
        if self._freed:
            message = f"{self._freed} sequences of lost replicas can be read again."
            tx.record("data.returned", message, run=run_row.name)
        self._tell_epochs()

    def _close_spans(self) -> None:
        """Write down those that changed, however many, in three statements at most."""
        before, now = _by_place(self._spans), _by_place(self.ledger.spans)
        session, run_row = self._tx.session, self._run
        if gone := before.keys() - now.keys():
            places = [{"of": run_row.id, "its_epoch": at, "its_start": start} for at, start in gone]
            session.execute(_DELETED, places)
        if kept := [span for at, span in now.items() if at in before and before[at] != span]:
            session.execute(update(DataSpan), [_row(run_row, span) for span in kept])
        if new := now.keys() - before.keys():
            session.execute(insert(_SPANS), [_row(run_row, now[at]) for at in new])

    def forget(self) -> None:
        """Forget the run's data: nobody holds or has trained any."""
        run_row = self._run
        for table in (DataSpan, DataEpoch):
            self._tx.session.execute(delete(table).where(table.run_id == run_row.id))
        run_row.dataset, run_row.data_epoch, run_row.data_position = None, 0, 0

    def _tell_epochs(self) -> None:
        """Tell of epochs that are done now."""
        assert self._run.dataset is not None
        size = Dataset.model_validate_json(self._run.dataset).sequences
        for epoch, done in self.ledger.done.items():
            was = self._done.get(epoch, Done())
            trained, excluded = count(done.trained), count(done.excluded)
            if trained + excluded < size or count(was.trained) + count(was.excluded) == size:
                continue
            message = f"Epoch {epoch} of the data is done: {trained} sequences were trained"
            message += f", and {excluded} excluded." if excluded else "."
            self._tx.record("data.epoch", message, run=self._run.name)


_SPANS = cast(Table, DataSpan.__table__)
_DELETED = delete(_SPANS).where(
    _SPANS.c.run_id == bindparam("of"),
    _SPANS.c.epoch == bindparam("its_epoch"),
    _SPANS.c.start == bindparam("its_start"),
)


def see_lives(tx: Transaction, run_row: Run) -> None:
    """A life has ended: what it held settles from now on."""
    if run_row.dataset is not None:
        tx.session.flush()
        book = Book(tx, run_row)
        book.see_lives()
        book.close()


def _alive(tx: Transaction, run_row: Run) -> dict[str, int]:
    query = select(Replica.name, Replica.incarnation)
    held = query.where(Replica.run_id == run_row.id, Replica.state.in_(HELD))
    return {name: incarnation for name, incarnation in tx.session.execute(held)}


def _settled(tx: Transaction, run_row: Run) -> int | None:
    """As of which version all fragments have settled; None until all have been heard of."""
    query = select(func.min(Fragment.settled), func.count()).where(Fragment.run_id == run_row.id)
    settled, known = tx.session.execute(query).one()
    return settled if 0 < run_row.fragments <= known else None


def _spans(tx: Transaction, run_row: Run, life: Life | None) -> list[Span]:
    columns = select(
        DataSpan.epoch,
        DataSpan.start,
        DataSpan.stop,
        DataSpan.replica,
        DataSpan.incarnation,
        DataSpan.number,
        DataSpan.covered,
        DataSpan.folded,
        DataSpan.until,
        DataSpan.gone,
    ).where(DataSpan.run_id == run_row.id)
    if life is not None:
        is_nobodys = DataSpan.replica.is_(None) | DataSpan.until.is_not(None)
        columns = columns.where(is_nobodys | (DataSpan.replica == life.replica))
    return [
        Span(
            Range(epoch, start, stop),
            Life(replica, incarnation) if replica is not None else None,
            number,
            int(covered, 16),
            folded,
            until,
            gone,
        )
        for epoch, start, stop, replica, incarnation, number, covered, folded, until, gone in (
            tx.session.execute(columns)
        )
    ]


def _by_place(spans: Iterable[Span]) -> dict[tuple[int, int], Span]:
    return {(span.range.epoch, span.range.start): span for span in spans}


def _row(run_row: Run, span: Span) -> dict[str, object]:
    return {
        "run_id": run_row.id,
        "epoch": span.range.epoch,
        "start": span.range.start,
        "stop": span.range.stop,
        "replica": span.life.replica if span.life else None,
        "incarnation": span.life.incarnation if span.life else 0,
        "number": span.grant,
        "covered": f"{span.covered:x}",
        "folded": span.folded,
        "until": span.until,
        "gone": span.gone,
    }


def _done(tx: Transaction, run_row: Run) -> dict[int, Done]:
    rows = tx.session.scalars(select(DataEpoch).where(DataEpoch.run_id == run_row.id))
    return {
        row.epoch: Done(_read(row.epoch, row.trained), _read(row.epoch, row.excluded))
        for row in rows
    }


def _read(epoch: int, text: str) -> Ranges:
    return tuple(Range(epoch, start, stop) for start, stop in json.loads(text))


def _text(ranges: Ranges) -> str:
    return json.dumps([[start, stop] for _, start, stop in ranges])
