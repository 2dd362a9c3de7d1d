"""Looking after leases: what runs out is marked, and nobody pays for our own absence.

To be cut off from everybody is an absence, too (``core/hearing``). Nor does anybody pay for that of
another control plane on the database: each says when it is to look again, and who has not by then
is away, with the heartbeats that were on their way to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import delete, func, or_, select, update

from syncline_control.core import hearing, leases
from syncline_control.core.hearing import Voice
from syncline_control.core.leases import HELD, REVIEW_S_MAX
from syncline_control.operations import replicas, services, settling
from syncline_control.tables import Replica, Run, SyncService, Watch
from syncline_control.transaction import Transaction


def review_leases(tx: Transaction, instance: str) -> float:
    """Judge every lease that may have ended; return the seconds until the next review."""
    held = Replica.state.in_(HELD)
    newest = select(Replica.lease_s, func.max(Replica.heard_at)).where(held)
    heard = {length_s: at for length_s, at in tx.session.execute(newest.group_by(Replica.lease_s))}
    lengths_s = list(heard)
    everyones_s = [*lengths_s, *services.lengths_s(tx)]
    others = tx.session.scalars(select(Watch).where(Watch.instance != instance)).all()
    if others:
        _wait_for(tx, others, max(everyones_s, default=0.0))
    # No lease of anybody ends within half of the shortest after somebody was heard. Where no
    # replica has one, silent services cost nobody anything, and others may come in their place.
    newest_at = max([*heard.values(), services.newest_heard_at(tx)])
    if heard and newest_at + min(everyones_s) / 2 < tx.now:
        _hold_who_is_unheard(tx)
    services.review(tx)
    if tx.late_s > services.LEASE_S / 2:
        settling.hold_back(tx)
    query = select(Replica, Run).join(Run, Run.id == Replica.run_id).where(held)
    # Only these can change; in a large fleet that is nearly nobody, unless we were held up.
    query = query.where(
        or_(
            Replica.lease_until <= tx.now,
            Replica.lease_until > tx.now + Replica.lease_s,
            Replica.lease_s < 2 * tx.late_s,
        )
    )
    lost: defaultdict[Run, list[Replica]] = defaultdict(list)
    for row, run_row in tx.session.execute(query.order_by(Replica.id)):
        lease = leases.review(replicas.lease_of(row), tx.now, tx.late_s)
        row.lease_until = lease.until
        if not lease.held:
            lost[run_row].append(row)
    for run_row, rows in lost.items():
        replicas.lose(tx, run_row, rows)
    every_s = leases.review_every_s(lengths_s)
    if others:
        tx.session.merge(_watch(tx, instance, every_s))
    return every_s


def _hold_who_is_unheard(tx: Transaction) -> None:
    """Give a full lease to whoever may be silent because we are cut off; until we hear anybody.

    Each time, not only at its end: who is heard last then has as long as who is first.
    """
    rows: list[Replica | SyncService] = [
        *tx.session.scalars(select(Replica).where(Replica.state.in_(HELD))),
        *tx.session.scalars(select(SyncService)),
    ]
    lengths_s = [row.lease_s if isinstance(row, Replica) else services.LEASE_S for row in rows]
    voices = [
        Voice(row.heard_at, length_s, isinstance(row, SyncService))
        for row, length_s in zip(rows, lengths_s, strict=True)
    ]
    for at in hearing.unheard(voices, tx.now):
        rows[at].lease_until = tx.now + lengths_s[at]
    tx.session.flush()


def begin(tx: Transaction, instance: str, *, alone: bool) -> None:
    """Give every held lease a full length: called once, when a control plane starts.

    The database may be a new one, or an old copy: from now on the membership has versions that
    nobody has seen: counted from the milliseconds since 1970, of which no database has used as
    many as have gone by. ``alone``: nobody else can be on it.
    """
    tx.bump(least=int(tx.now * 1000))
    for row in tx.session.scalars(select(Replica).where(Replica.state.in_(HELD))):
        row.lease_until = tx.now + row.lease_s
    services.extend_all(tx)
    settling.hold_back(tx)
    if alone:
        tx.session.execute(delete(Watch))
    # Who was alone has not said so far when it looks again.
    tx.session.execute(update(Watch).values(due=tx.now + 2 * REVIEW_S_MAX))
    tx.session.add(_watch(tx, instance, 2 * REVIEW_S_MAX))


def _watch(tx: Transaction, instance: str, every_s: float) -> Watch:
    there = tx.session.get(Watch, instance)
    since = there.since if there else tx.now
    return Watch(instance=instance, since=since, due=tx.now + every_s)


def _wait_for(tx: Transaction, others: Sequence[Watch], longest_s: float) -> None:
    """Be as late as the latest of all control planes; who is away for longer is forgotten.

    By then every lease has been given a full length for it, none of them over ``longest_s``.
    """
    for watch in others:
        late_s = tx.now - watch.due
        tx.late_s = max(tx.late_s, late_s)
        if late_s > longest_s / 2:
            tx.session.delete(watch)
