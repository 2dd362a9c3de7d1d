"""Loss curves: points come with heartbeats, and a curve that grows too long is thinned evenly."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import delete, func, select

from syncline_control.core.curves import thinned
from syncline_control.database import Point, Run
from syncline_control.operations import runs
from syncline_control.transaction import Transaction
from syncline_proto.rest import LossPoint, MetricSeries

POINTS_MAX = 5_000
"""Per replica and kind; beyond it half of them are kept."""


def add(tx: Transaction, run_row: Run, replica: str, points: Sequence[LossPoint]) -> None:
    """Append to the replica's curves; a loss that is not finite has no place on a curve."""
    for point in points:
        if math.isfinite(point.loss):
            row = Point(
                run_id=run_row.id,
                replica=replica,
                kind=point.kind,
                tokens=point.tokens,
                loss=point.loss,
                time=tx.now,
            )
            tx.session.add(row)
    tx.session.flush()
    for kind in {point.kind for point in points}:
        _thin(tx, run_row, replica, kind)


def series(tx: Transaction, run: str, points_max: int) -> list[MetricSeries]:
    """Return every curve of the run, each thinned to at most ``points_max`` points."""
    run_row = runs.find(tx, run)
    curves: dict[tuple[str, str], list[tuple[int, float, float]]] = defaultdict(list)
    rows = tx.session.execute(
        select(Point.replica, Point.kind, Point.tokens, Point.loss, Point.time)
        .where(Point.run_id == run_row.id)
        .order_by(Point.replica, Point.kind, Point.id)
    )
    for replica, kind, tokens, loss, when in rows:
        curves[replica, kind].append((tokens, loss, when))
    return [_series(replica, kind, curve, points_max) for (replica, kind), curve in curves.items()]


def _series(
    replica: str, kind: str, curve: list[tuple[int, float, float]], points_max: int
) -> MetricSeries:
    kept = [curve[i] for i in thinned([tokens for tokens, _, _ in curve], points_max)]
    return MetricSeries(
        replica=replica,
        kind=kind,
        tokens=[tokens for tokens, _, _ in kept],
        loss=[loss for _, loss, _ in kept],
        time=[when for _, _, when in kept],
    )


def _thin(tx: Transaction, run_row: Run, replica: str, kind: str) -> None:
    curve = (Point.run_id == run_row.id, Point.replica == replica, Point.kind == kind)
    count = tx.session.scalar(select(func.count()).where(*curve)) or 0
    if count <= POINTS_MAX:
        return
    rows = tx.session.execute(select(Point.id, Point.tokens).where(*curve).order_by(Point.id)).all()
    kept = set(thinned([tokens for _, tokens in rows], POINTS_MAX // 2))
    dropped = [point_id for i, (point_id, _) in enumerate(rows) if i not in kept]
    for start in range(0, len(dropped), 500):  # databases bound the length of a list
        tx.session.execute(delete(Point).where(Point.id.in_(dropped[start : start + 500])))
