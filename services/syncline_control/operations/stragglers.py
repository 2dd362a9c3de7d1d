"""Stragglers: what replicas tell of their pace, and what ``core/stragglers`` says of it, kept.

Every row of a run that holds a lease is looked at, every ``LOOK_S``. How long somebody has been
slow is counted only from look to look: a pause, or a time without a control plane, is nobody's
fault. Decides nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from sqlalchemy import select

from syncline_control.core import stragglers
from syncline_control.core.leases import HELD
from syncline_control.core.stragglers import Mark, Sample, Verdict
from syncline_control.operations import replicas, runs
from syncline_control.tables import Replica, Run
from syncline_control.transaction import Transaction
from syncline_proto.rest import ReplicaState, RunState

LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class Looked:
    """A control plane's last look."""

    at: float = 0.0
    runs: frozenset[int] = frozenset()
    """Those that went on then, by id."""


def look(tx: Transaction, last: Looked) -> Looked:
    """Judge the replicas of every run that goes on, if the last look is long past; when that was.

    Several control planes on a database all look, and find the same; with one that starts
    all counts begin anew.
    """
    if 0.0 <= tx.now - last.at < LOOK_S:
        return last
    followed = last.runs if 0.0 <= tx.now - last.at <= 2 * LOOK_S else frozenset[int]()
    both = select(Run, Replica).join(Replica, Replica.run_id == Run.id)
    query = both.where(Run.state == RunState.RUNNING, Replica.state.in_(HELD))
    crews: defaultdict[int, list[Replica]] = defaultdict(list)
    of_run: dict[int, Run] = {}
    for run_row, row in tx.session.execute(query.order_by(Replica.id)):
        of_run[run_row.id] = run_row
        crews[run_row.id].append(row)
    for run_id, rows in crews.items():
        _look_at(tx, of_run[run_id], rows, run_id in followed)
    return Looked(tx.now, frozenset(crews))


def _look_at(tx: Transaction, run_row: Run, rows: list[Replica], is_followed: bool) -> None:
    settings = runs.settings_of(run_row)
    samples = [
        Sample(
            replica=row.name,
            rate=row.steps_per_second,
            mark=_mark(row) if is_followed else stragglers.broken_off(_mark(row)),
            leaves=row.state == ReplicaState.DRAINING,
        )
        for row in rows
    ]
    least, share = settings.min_replicas, stragglers.least_share(settings)
    verdicts = stragglers.look(tx.now, samples, settings.stragglers, least, share)
    for row, verdict in zip(rows, verdicts, strict=True):
        _take(tx, run_row, row, verdict)


def _take(tx: Transaction, run_row: Run, row: Replica, verdict: Verdict) -> None:
    row.pace = verdict.pace
    _keep(row, verdict.mark)
    for kind, message in verdict.events:
        tx.record(kind, message, run=run_row.name, replica=row.name)
    if verdict.let_go:
        replicas.let_go(tx, run_row, row, verdict.let_go)


def _mark(row: Replica) -> Mark:
    return Mark(row.slow_since, row.straggles, row.step_share, row.least_since)


def _keep(row: Replica, mark: Mark) -> None:
    row.slow_since, row.straggles = mark.slow_since, mark.straggles
    row.step_share, row.least_since = mark.share, mark.least_since
