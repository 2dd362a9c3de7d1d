"""Looking after leases: what runs out is marked, and nobody pays for our own absence."""

from __future__ import annotations

from sqlalchemy import or_, select

from syncline_control.core import leases
from syncline_control.core.leases import HELD
from syncline_control.database import Replica, Run
from syncline_control.operations import replicas, services
from syncline_control.transaction import Transaction


def review_leases(tx: Transaction) -> float:
    """Judge every lease that may have ended; return the seconds until the next review."""
    services.review(tx)
    held = Replica.state.in_(HELD)
    query = select(Replica, Run).join(Run, Run.id == Replica.run_id).where(held)
    # Only these can change; in a large fleet that is nearly nobody, unless we were held up.
    query = query.where(
        or_(
            Replica.lease_until <= tx.now,
            Replica.lease_until > tx.now + Replica.lease_s,
            Replica.lease_s < 2 * tx.late_s,
        )
    )
    for row, run_row in tx.session.execute(query.order_by(Replica.id)):
        lease = leases.review(replicas.lease_of(row), tx.now, tx.late_s)
        row.lease_until = lease.until
        if not lease.held:
            replicas.lose(tx, run_row, row)
    return leases.review_every_s(tx.session.scalars(select(Replica.lease_s).where(held).distinct()))


def welcome_back(tx: Transaction) -> None:
    """Give every held lease a full length: called once, when the control plane starts.

    The database may be a new one, or an old copy: from now on the membership has versions that
    nobody has seen.
    """
    tx.bump(least=int(tx.now))
    for row in tx.session.scalars(select(Replica).where(Replica.state.in_(HELD))):
        row.lease_until = tx.now + row.lease_s
    services.extend_all(tx)
