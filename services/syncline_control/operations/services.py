"""Sync services: they say where they listen, again before their lease ends, and that they end.

All that are known share the runs' fragments: they agree on how many they are, and no two have the
same index. Whoever contradicts a living one is refused, and for it a dead one is forgotten. Under a
name the newest instance counts: a start is never refused for the one before, which may be dead. One
that was replaced and says hello again is alive, as is the newer: of the two it is refused.
"""

from __future__ import annotations

import json

from sqlalchemy import delete, func, or_, select

from syncline_control.operations import phases
from syncline_control.tables import SyncService
from syncline_control.transaction import Transaction
from syncline_proto.errors import InvalidRequest, Overloaded, RunConflict
from syncline_proto.rest import SyncEndpoint, SyncServiceAnswer, SyncServiceHello

LEASE_S = 15.0
SERVICES_MAX = 1_000

FORGET_S = 3_600.0
"""A service that has been away this long is taken off the list."""

REPLACED_MAX = 64
"""Instances of one name of which it is known that others have replaced them."""


def hello(tx: Transaction, name: str, body: SyncServiceHello) -> SyncServiceAnswer:
    """Write down where the service listens and renew its lease.

    Raises:
        InvalidRequest: the names in path and body differ, or its index is none.
        RunConflict: it contradicts a service that is alive, or was replaced by one that is.
        Overloaded: there are too many sync services.
    """
    if body.name != name:
        raise InvalidRequest(f"name: the body says {body.name} and the path {name}.")
    if body.index >= body.shards:
        raise InvalidRequest(f"index: {body.index} is not below shards ({body.shards}).")
    row = tx.session.get(SyncService, name)
    if row is not None:
        _check_is_newest(tx, row, body.instance)
    _make_room(tx, body)
    if row is None:
        if (tx.session.scalar(select(func.count()).select_from(SyncService)) or 0) >= SERVICES_MAX:
            raise Overloaded(f"There are {SERVICES_MAX} sync services already.")
        row = SyncService(name=name, instance="", replaced="[]", alive=False)
        tx.session.add(row)
    _hand_over(tx, row, body)
    row.address = body.address
    row.index, row.shards = body.index, body.shards
    row.lease_until, row.heard_at = tx.now + LEASE_S, tx.now
    row.alive = True
    phases.take(tx, body)
    return SyncServiceAnswer(lease_s=LEASE_S)


def leave(tx: Transaction, name: str, instance: str, why: str) -> None:
    """Write down that the service has ended; nothing happens if another instance has its place.

    ``why`` is told with it, unless it is empty: one whose disk hangs says so only after its lease.
    """
    row = tx.session.get(SyncService, name)
    if row is not None and row.instance == instance and row.heard_at:
        row.alive, row.lease_until = False, tx.now
        row.heard_at = 0.0  # it is not to be heard any more
        because = f": {why.removesuffix('.')}" if why else ""
        tx.record("sync.ended", f"Sync service {name} has ended{because}.")


def endpoints(tx: Transaction) -> list[SyncEndpoint]:
    """Return where sync services listen, by index."""
    rows = tx.session.scalars(select(SyncService).order_by(SyncService.index))
    return [
        SyncEndpoint(
            name=row.name,
            address=row.address,
            index=row.index,
            shards=row.shards,
            alive=_is_alive(tx, row),
        )
        for row in rows
    ]


def review(tx: Transaction) -> None:
    """Mark the services whose lease has ended, or extend all if we come late; forget old ones."""
    if tx.late_s > LEASE_S / 2:
        extend_all(tx)
    ended = select(SyncService).where(SyncService.alive, SyncService.lease_until <= tx.now)
    for row in tx.session.scalars(ended):
        row.alive = False
        tx.record("sync.lost", f"Sync service {row.name} has not answered for {LEASE_S:g} s.")
    gone = SyncService.lease_until <= tx.now - FORGET_S
    tx.session.execute(delete(SyncService).where(~SyncService.alive, gone))


def lengths_s(tx: Transaction) -> list[float]:
    """Return how long the leases are that services hold, each length once."""
    alive = select(func.count()).select_from(SyncService).where(SyncService.alive)
    return [LEASE_S] if tx.session.scalar(alive) else []


def newest_heard_at(tx: Transaction) -> float:
    """Return when any service was last heard; 0 where there is none."""
    return tx.session.scalar(select(func.max(SyncService.heard_at))) or 0.0


def _check_is_newest(tx: Transaction, row: SyncService, instance: str) -> None:
    """See that nobody takes the name back from the instance that has replaced it, and lives.

    Raises:
        RunConflict: it is another one's by now.
    """
    if instance in json.loads(row.replaced) and _is_alive(tx, row):
        raise RunConflict(
            f"Another sync service has started under the name {row.name}, at {row.address}, and "
            "both are alive: stop the one whose folder has not the runs, or, if they are to share "
            "the runs, give both the same --shards, and each an --index and a --name of its own."
        )


def _hand_over(tx: Transaction, row: SyncService, body: SyncServiceHello) -> None:
    """Give the name to this instance, and remember whose it was."""
    replaced: list[str] = json.loads(row.replaced)
    is_new = row.instance != body.instance
    if is_new and body.instance not in replaced:
        act = "started again" if row.instance else "started"
        seat = f", {body.index} of {body.shards}" if max(body.shards, row.shards or 1) > 1 else ""
        moved = row.address != body.address and _is_alive(tx, row)
        other = f"; one at {row.address}, if it lives on, is refused from now on" if moved else ""
        tx.record("sync.started", f"Sync service {row.name} {act} at {body.address}{seat}{other}.")
    elif is_new or not row.alive:
        tx.record("sync.back", f"Sync service {row.name} answers again at {body.address}.")
    if is_new and row.instance:
        others = [one for one in replaced if one != body.instance]
        row.replaced = json.dumps([*others, row.instance][-REPLACED_MAX:])
    row.instance = body.instance


def _make_room(tx: Transaction, body: SyncServiceHello) -> None:
    """Forget the dead that say otherwise than this service.

    Raises:
        RunConflict: one that does is alive.
    """
    other = or_(SyncService.shards != body.shards, SyncService.index == body.index)
    query = select(SyncService).where(SyncService.name != body.name, other)
    for row in tx.session.scalars(query.order_by(SyncService.index)).all():
        if _is_alive(tx, row):
            raise RunConflict(
                f"Sync service {row.name} at {row.address} is {row.index} of {row.shards}, and "
                f"{body.name} says {body.index} of {body.shards}; give all of them the same "
                "--shards, and each an --index of its own."
            )
        tx.session.delete(row)
        tx.record(
            "sync.replaced",
            f"Sync service {row.name}, {row.index} of {row.shards}, was away and is forgotten: "
            f"{body.name} says {body.index} of {body.shards}.",
        )


def _is_alive(tx: Transaction, row: SyncService) -> bool:
    return row.alive and tx.now < row.lease_until


def extend_all(tx: Transaction) -> None:
    """Give every service that is alive a full lease."""
    for row in tx.session.scalars(select(SyncService).where(SyncService.alive)):
        row.lease_until = tx.now + LEASE_S
