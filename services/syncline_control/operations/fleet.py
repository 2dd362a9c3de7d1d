"""The fleet at one moment: what a scrape of the metrics shows. Knows no metric's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import func, select

from syncline_control.core.leases import HELD
from syncline_control.core.runs import ENDED
from syncline_control.operations import data, replicas, runs
from syncline_control.tables import Replica, Run
from syncline_control.transaction import Transaction
from syncline_proto.leased import DataView
from syncline_proto.rest import ReplicaView, RunView

SHOWN_AFTER_END_S = 900.0
"""A run that has ended keeps its series this long, so that its last values are scraped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    view: RunView
    leases_lost: int
    data: DataView
    replicas: list[ReplicaView]
    """The ones that are alive or draining."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    states: Mapping[str, int] = field(default_factory=dict[str, int])
    """Run state -> how many runs are in it."""
    runs: list[ShownRun] = field(default_factory=list[ShownRun])


def snapshot(tx: Transaction) -> Snapshot:
    """Read what a scrape shows."""
    counts = tx.session.execute(select(Run.state, func.count()).group_by(Run.state))
    fresh = Run.state.not_in(ENDED) | (Run.ended_at > tx.now - SHOWN_AFTER_END_S)
    rows = tx.session.scalars(select(Run).where(fresh).order_by(Run.name)).all()
    shown = [
        ShownRun(
            view=view,
            leases_lost=row.leases_lost,
            data=data.view(tx, row.name),
            replicas=_held(tx, row),
        )
        for row, view in zip(rows, runs.views(tx, rows), strict=True)
    ]
    return Snapshot(states={state: count for state, count in counts}, runs=shown)


def _held(tx: Transaction, row: Run) -> list[ReplicaView]:
    query = select(Replica).where(Replica.run_id == row.id, Replica.state.in_(HELD))
    rows = tx.session.scalars(query.order_by(Replica.ordinal))
    return [replicas.view(tx, replica) for replica in rows]
