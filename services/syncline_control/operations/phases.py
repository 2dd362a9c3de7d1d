"""Synchronous phases of runs that several sync services share: votes come with their hellos."""

from __future__ import annotations

import json

from sqlalchemy import select

from syncline_control.core import phases
from syncline_control.core.phases import Phase
from syncline_control.tables import Run
from syncline_control.transaction import Transaction
from syncline_proto.rest import SyncServiceHello


def take(tx: Transaction, body: SyncServiceHello) -> None:
    """Count a service's votes; all services hear of what follows. Unknown runs are passed over."""
    votes = {vote.run: vote for vote in body.votes}
    for row in tx.session.scalars(select(Run).where(Run.name.in_(votes)).order_by(Run.id)):
        vote, before = votes[row.name], of(row)
        now = phases.after(before, body.index, body.shards, vote.phase, vote.offered)
        if now == before:
            continue
        row.phase, row.phase_ended = now.number, now.has_ended
        row.phase_offered = json.dumps(sorted(now.offered))
        if now.has_ended:
            tx.record("phase.ended", "The synchronous phase has ended.", run=row.name)
        elif not vote.offered:
            why = "Everyone in the synchronous phase is gone: it starts again."
            tx.record("phase.lost", why, run=row.name)
        if now.has_ended or now.number > before.number:
            tx.bump()


def of(row: Run) -> Phase:
    """Return the phase as the core knows it."""
    offered: list[int] = json.loads(row.phase_offered)
    return Phase(number=row.phase, offered=frozenset(offered), has_ended=row.phase_ended)
