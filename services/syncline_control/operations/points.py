"""Loss curves: points come with heartbeats, and a curve that grows too long is thinned evenly."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, get_args

from sqlalchemy import delete, func, insert, select

from syncline_control.core.curves import thinned
from syncline_control.operations import runs
from syncline_control.tables import Point, Replica
from syncline_control.transaction import Transaction
from syncline_proto.rest import LossPoint, MetricSeries

POINTS_MAX = 5_000
"""Per replica and kind; beyond it half of them are kept."""

POINTS_UNSEEN_MAX = 500
"""Points of a replica after which its curves are counted again."""


def add(tx: Transaction, told: Sequence[tuple[Replica, Sequence[LossPoint]]]) -> None:
    """Append to replicas' curves; a loss that is not finite has no place on a curve.

    Counting a curve costs more than adding to it, so it is done once in many points.
    """
    new: list[dict[str, Any]] = []
    for row, points in told:
        kept = [point for point in points if math.isfinite(point.loss)]
        row.points_unseen += len(kept)
        whose = {"run_id": row.run_id, "replica": row.name, "time": tx.now}
        new += [
            {**whose, "kind": point.kind, "tokens": point.tokens, "loss": point.loss}
            for point in kept
        ]
    if new:
        tx.session.execute(insert(Point), new)
    for row, _ in told:
        if row.points_unseen >= POINTS_UNSEEN_MAX:
            row.points_unseen = 0
            for kind in get_args(LossPoint.model_fields["kind"].annotation):
                _thin(tx, row, kind)


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


def _thin(tx: Transaction, row: Replica, kind: str) -> None:
    curve = (Point.run_id == row.run_id, Point.replica == row.name, Point.kind == kind)
    count = tx.session.scalar(select(func.count()).where(*curve)) or 0
    if count <= POINTS_MAX:
        return
    rows = tx.session.execute(select(Point.id, Point.tokens).where(*curve).order_by(Point.id)).all()
    kept = set(thinned([tokens for _, tokens in rows], POINTS_MAX // 2))
    dropped = [point_id for i, (point_id, _) in enumerate(rows) if i not in kept]
    for start in range(0, len(dropped), 500):  # databases bound the length of a list
        tx.session.execute(delete(Point).where(Point.id.in_(dropped[start : start + 500])))
