"""Heartbeats, many at once: of all that is asked of a control plane, the most by far.

One transaction of a few statements takes them all, since a statement costs more than a heartbeat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from syncline_control.core.leases import HELD
from syncline_control.operations import points, replicas, runs
from syncline_control.operations.checks import finite, to_average
from syncline_control.tables import Replica, Run
from syncline_control.transaction import Transaction
from syncline_proto.errors import SynclineError
from syncline_proto.rest import Heartbeat, HeartbeatAnswer, ReplicaState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One heartbeat, and whose it is."""

    run: str
    replica: str
    body: Heartbeat


def take(tx: Transaction, beats: Sequence[Beat]) -> list[HeartbeatAnswer | SynclineError]:
    """Renew each lease and take in what its replica says; one that is refused changes nothing.

    A refusal is LeaseLost (this incarnation does not hold the lease any more), RunUnknown or
    ReplicaUnknown; the other heartbeats are taken all the same.
    """
    rows = _rows(tx, beats)
    alive = _alive(tx, {run_row.id for run_row, _ in rows.values()})
    told: list[tuple[Replica, Heartbeat]] = []
    outcomes: list[HeartbeatAnswer | SynclineError] = []
    for beat in beats:
        try:
            found = rows.get((beat.run, beat.replica))
            run_row, row = found or replicas.find(tx, beat.run, beat.replica)
            replicas.renew(tx, row, beat.body.incarnation)
        except SynclineError as refusal:
            outcomes.append(refusal)
            continue
        row.progress = beat.body.progress.model_dump_json()
        if beat.body.progress.loss is not None:
            row.loss = to_average(beat.body.progress.loss)
        row.steps_per_second = finite(beat.body.progress.steps_per_second)
        told.append((row, beat.body))
        outcomes.append(
            HeartbeatAnswer(
                lease_s=row.lease_s,
                run_state=RunState(run_row.state),
                drain=row.state == ReplicaState.DRAINING,
                settings=runs.settings_of(run_row),
                settings_version=run_row.settings_version,
                replicas_alive=alive[run_row.id],
                step_share=row.step_share,
            )
        )
    points.add(tx, [(row, body.points) for row, body in told if body.points])
    return outcomes


def _rows(tx: Transaction, beats: Sequence[Beat]) -> dict[tuple[str, str], tuple[Run, Replica]]:
    """Return the rows of the heartbeats' replicas, as far as there are any."""
    names: dict[str, set[str]] = defaultdict(set)
    for beat in beats:
        names[beat.run].add(beat.replica)
    both = select(Run, Replica).join(Replica, Replica.run_id == Run.id)
    return {
        (run, row.name): (run_row, row)
        for run, of_run in names.items()
        for run_row, row in tx.session.execute(
            both.where(Run.name == run, Replica.name.in_(of_run))
        )
    }


def _alive(tx: Transaction, run_ids: set[int]) -> dict[int, int]:
    """Count the held leases of each run."""
    query = (
        select(Replica.run_id, func.count())
        .where(Replica.run_id.in_(run_ids), Replica.state.in_(HELD))
        .group_by(Replica.run_id)
    )
    return {run_id: alive for run_id, alive in tx.session.execute(query)}
