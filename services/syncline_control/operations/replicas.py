"""Replicas: register, renew, drain, kick, leave. The core's leases decide; rows remember."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import select

from syncline_control.core import leases
from syncline_control.core.leases import Lease
from syncline_control.operations import books, runs, services
from syncline_control.tables import Replica, Run
from syncline_control.transaction import Transaction
from syncline_proto.errors import LayoutMismatch, Overloaded, ReplicaUnknown, RunFull
from syncline_proto.rest import (
    Progress,
    Registration,
    ReplicaRegister,
    ReplicaState,
    ReplicaView,
)

REPLICAS_PER_RUN_MAX = 10_000


def register(tx: Transaction, run: str, body: ReplicaRegister) -> Registration:
    """Give the replica a lease under a new incarnation; its older life is fenced.

    Raises:
        RunUnknown, RunConflict: there is no such run, or it has ended.
        LayoutMismatch: the older life is at work on another model, and goes on.
        LeaseLost: an operator removed the replica.
        Overloaded: the run has had too many replicas.
        RunFull: its ``max_replicas`` are here.
    """
    run_row = runs.find(tx, run)
    runs.refuse_if_ended(run_row)
    timeouts = runs.settings_of(run_row).timeouts
    row = _row(tx, run_row, body.replica)
    if row is not None:
        _refuse_another_model(run_row, row, body.fingerprint)
    older = lease_of(row) if row else None
    if not (older and older.held):
        _refuse_where_full(tx, run_row)
    lease = leases.grant(older, tx.now, timeouts.lease_s)
    if row is None:
        row = _new_row(tx, run_row, body.replica)
    row.joined_at = row.heard_at = tx.now
    row.ranks = body.ranks
    row.host = body.host
    row.pid = body.pid
    row.fingerprint = body.fingerprint
    row.progress = Progress().model_dump_json()
    row.loss, row.taking_part, row.shares = None, False, "{}"
    row.steps_per_second, row.pace, row.slow_since, row.least_since = None, None, None, None
    row.straggles, row.step_share = False, 1.0
    _keep(row, lease)
    where = f" on {body.host}" if body.host else ""
    if older and older.held:
        tx.record(
            "replica.fenced",
            f"{body.replica} started again{where}; incarnation {lease.incarnation} fences "
            f"{older.incarnation}.",
            run=run,
            replica=body.replica,
        )
    else:
        tx.record(
            "replica.joined",
            f"{body.replica} joined{where} (incarnation {lease.incarnation}).",
            run=run,
            replica=body.replica,
        )
    tx.bump()
    if not (older and older.held):
        runs.see_minimum(tx, run_row, grown=1)  # first: what settles may have to do so anew
    books.see_lives(tx, run_row)
    tx.session.flush()
    return Registration(
        replica=row.name,
        incarnation=row.incarnation,
        ordinal=row.ordinal,
        lease_s=timeouts.lease_s,
        heartbeat_s=timeouts.heartbeat_s,
        run=runs.view(tx, run_row),
        sync_services=services.endpoints(tx),
    )


def renew(tx: Transaction, row: Replica, incarnation: int) -> None:
    """Renew the lease by a full length.

    Raises:
        LeaseLost: this incarnation does not hold it any more.
    """
    _keep(row, leases.renew(lease_of(row), incarnation, tx.now, tx.late_s))
    row.heard_at = tx.now


def drain(tx: Transaction, run: str, replica: str) -> ReplicaView:
    """Ask the replica to finish and leave; it hears so with its next heartbeat.

    Raises:
        RunConflict: the replica is not alive.
        LeaseLost: an operator removed it.
    """
    run_row, row = find(tx, run, replica)
    _end_or_drain(tx, run_row, row, leases.drain(lease_of(row)), f"{replica} is draining.")
    return view(tx, row)


def let_go(tx: Transaction, run_row: Run, row: Replica, why: str) -> None:
    """Ask a replica that holds its lease to finish and leave, and tell why."""
    _end_or_drain(tx, run_row, row, leases.drain(lease_of(row)), why)


def kick(tx: Transaction, run: str, replica: str) -> ReplicaView:
    """Take the lease away at once, and the name with it; nothing happens if nobody is alive."""
    run_row, row = find(tx, run, replica)
    message = f"An operator removed {replica}."
    _end_or_drain(tx, run_row, row, leases.kick(lease_of(row), tx.now), message)
    return view(tx, row)


def leave(tx: Transaction, run: str, replica: str, incarnation: int, why: str) -> None:
    """Give the lease back; nothing happens if this incarnation does not hold it.

    ``why`` is told with it, unless it is empty.

    Raises:
        LeaseLost: an operator removed the replica.
    """
    run_row, row = find(tx, run, replica)
    released = leases.release(lease_of(row), incarnation, tx.now)
    message = f"{replica} left: {why}" if why else f"{replica} left."
    _end_or_drain(tx, run_row, row, released, message)


def listed(tx: Transaction, run: str) -> list[ReplicaView]:
    """Return every replica that ever came, in the order in which they first did."""
    run_row = runs.find(tx, run)
    rows = tx.session.scalars(
        select(Replica).where(Replica.run_id == run_row.id).order_by(Replica.ordinal)
    )
    return [view(tx, row) for row in rows]


def lose(tx: Transaction, run_row: Run, rows: Sequence[Replica]) -> None:
    """Write down that these replicas' leases ran out; a run that is done ends with its last.

    All of a run together: what is done for the run is much, and many may die at once.
    """
    for row in rows:
        row.state = ReplicaState.LOST
        row.taking_part = False
        tx.record(
            "replica.lost",
            f"{row.name} is lost: no heartbeat for {row.lease_s:g} s.",
            run=run_row.name,
            replica=row.name,
        )
    run_row.leases_lost += len(rows)
    tx.bump()
    books.see_lives(tx, run_row)
    runs.see_minimum(tx, run_row, grown=-len(rows))
    runs.finish_if_done(tx, run_row)


def find(tx: Transaction, run: str, replica: str) -> tuple[Run, Replica]:
    """Return the rows of the run and its replica.

    Raises:
        RunUnknown, ReplicaUnknown: there is none.
    """
    both = select(Run, Replica).join(Replica, Replica.run_id == Run.id)
    found = tx.session.execute(both.where(Run.name == run, Replica.name == replica)).first()
    if found is None:
        runs.find(tx, run)
        raise ReplicaUnknown(
            f"Run {run} has no replica {replica}; `syncline replicas ls {run}` lists them."
        )
    return found[0], found[1]


def view(tx: Transaction, row: Replica) -> ReplicaView:
    shares: list[list[float | None]] = list(json.loads(row.shares).values())
    weights = [share[0] for share in shares if share[0] is not None]
    scores = [share[1] for share in shares if share[1] is not None]
    return ReplicaView(
        replica=row.name,
        incarnation=row.incarnation,
        state=ReplicaState(row.state),
        taking_part=row.taking_part,
        ranks=row.ranks,
        host=row.host,
        pid=row.pid,
        joined_at=row.joined_at,
        lease_left_s=lease_of(row).left_s(tx.now),
        progress=Progress.model_validate_json(row.progress),
        weight=sum(weight / len(weights) for weight in weights) if weights else None,
        z=max(scores, default=None),
        exclusions=row.exclusions,
        pace=row.pace,
        straggles=row.straggles,
        step_share=row.step_share,
    )


def _end_or_drain(tx: Transaction, run_row: Run, row: Replica, lease: Lease, message: str) -> None:
    """Keep the lease; if its state is another one now, tell everybody.

    A run that is done ends with its last lease.
    """
    if lease.state == row.state:
        return
    _keep(row, lease)
    tx.record(f"replica.{lease.state}", message, run=run_row.name, replica=row.name)
    tx.bump()
    if not lease.held:
        row.taking_part = False
        books.see_lives(tx, run_row)
        runs.see_minimum(tx, run_row, grown=-1)
        runs.finish_if_done(tx, run_row)


def _refuse_another_model(run_row: Run, older: Replica, fingerprint: str) -> None:
    """See that nobody ends a life at work who would then be refused by the sync service.

    One that has joined has the run's layout, for the sync service let it in.

    Raises:
        LayoutMismatch: ``older`` is such a life, and ``fingerprint`` another than its own.
    """
    alike = not (older.fingerprint and fingerprint) or older.fingerprint == fingerprint
    if alike or not lease_of(older).held:
        return
    if Progress.model_validate_json(older.progress).phase != "joining":
        raise LayoutMismatch(
            f"This model is not the one of run {run_row.name}, on which {older.name} is at work: "
            "train the run's model, or start another run."
        )


def _refuse_where_full(tx: Transaction, run_row: Run) -> None:
    """
    Raises:
        RunFull: as many replicas are here as may be.
    """
    most = runs.settings_of(run_row).max_replicas
    if most is not None and runs.alive(tx, run_row) >= most:
        raise RunFull(
            f"Run {run_row.name} has its {most} replicas (max_replicas); there is a place when one "
            "of them has left."
        )


def _row(tx: Transaction, run_row: Run, replica: str) -> Replica | None:
    return tx.session.scalar(
        select(Replica).where(Replica.run_id == run_row.id, Replica.name == replica)
    )


def _new_row(tx: Transaction, run_row: Run, replica: str) -> Replica:
    if run_row.replicas_seen >= REPLICAS_PER_RUN_MAX:
        raise Overloaded(f"Run {run_row.name} has had {REPLICAS_PER_RUN_MAX} replicas already.")
    row = Replica(run_id=run_row.id, name=replica, ordinal=run_row.replicas_seen)
    row.exclusions, row.points_unseen = 0, 0
    run_row.replicas_seen += 1
    tx.session.add(row)
    return row


def lease_of(row: Replica) -> Lease:
    """Return the lease as the core knows it."""
    return Lease(
        incarnation=row.incarnation,
        state=ReplicaState(row.state),
        until=row.lease_until,
        length_s=row.lease_s,
    )


def _keep(row: Replica, lease: Lease) -> None:
    row.incarnation = lease.incarnation
    row.state = lease.state
    row.lease_until = lease.until
    row.lease_s = lease.length_s
