"""The event log: what happened, in plain words, newest kept."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, or_, select

from syncline_control.operations import runs
from syncline_control.tables import EventRow
from syncline_control.transaction import Transaction
from syncline_proto.rest import Event


def listed(
    tx: Transaction, run: str | None, after: int | None, limit: int, kind: str | None = None
) -> list[Event]:
    """Return events in the order in which they happened.

    Args:
        run: only those of this run, and those of no run (of the sync services) that happened
            between its creation and its end, and so concern it.
        after: the ``limit`` events that follow this id; None: the newest ``limit``.
        kind: only those of this kind.

    Raises:
        RunUnknown: there is no such run.
    """
    query = select(EventRow).limit(limit)
    if run is not None:
        row = runs.find(tx, run)
        meanwhile = EventRow.run.is_(None) & (EventRow.time >= row.created_at)
        if row.ended_at is not None:
            meanwhile &= EventRow.time <= row.ended_at
        query = query.where(or_(EventRow.run == run, meanwhile))
    if kind is not None:
        query = query.where(EventRow.kind == kind)
    if after is not None:
        rows = tx.session.scalars(query.where(EventRow.id > after).order_by(EventRow.id)).all()
    else:
        rows = tx.session.scalars(query.order_by(EventRow.id.desc())).all()[::-1]
    return [
        Event(
            id=row.id,
            time=row.time,
            run=row.run,
            replica=row.replica,
            kind=row.kind,
            message=row.message,
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Events that followed an id."""

    events: list[Event]
    upto: int
    """The id after which the next page begins; it passes over events of other runs.

    It is below the id that was asked about where that is from the log of another database.
    """
    more: bool


def page(tx: Transaction, run: str | None, after: int, limit: int) -> Page:
    """Return the next ``limit`` events after an id, as ``listed`` does, and where to go on."""
    found = listed(tx, run, after, limit)
    if len(found) == limit:
        return Page(events=found, upto=found[-1].id, more=True)
    return Page(events=found, upto=newest_id(tx, run), more=False)


def newest_id(tx: Transaction, run: str | None) -> int:
    """Return the id of the newest event of all, 0 if there is none.

    Raises:
        RunUnknown: a run is named and there is no such run.
    """
    if run is not None:
        runs.find(tx, run)
    return tx.session.scalar(select(func.max(EventRow.id))) or 0
