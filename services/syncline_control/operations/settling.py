"""How leased data settles whose life is gone: while a round may be open that has it.

Sync services say when none is (``hear``). Where they cannot it takes a while: a round is open for
ever while the run is paused or lacks its ``min_replicas``, so what settles begins anew when rounds
close again, and not only when somebody asks for data. Decides nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update

from syncline_control.tables import DataSpan, Fragment, Plane, Run
from syncline_control.transaction import Transaction
from syncline_proto.reports import Settled
from syncline_proto.settings import RunSettings

HEARD_S = 15.0
"""Sync services ask again within 5 s, and tell at once what waits."""


def settle_s(settings: RunSettings) -> float:
    """How long to wait for a life that is gone where nobody can say what is open of it.

    A run's rounds take no longer as a rule, if it is not paused and has its ``min_replicas``.
    """
    return settings.timeouts.round_deadline_s + settings.timeouts.lease_s


def anew(tx: Transaction, run_row: Run, settings: RunSettings) -> None:
    """Rounds close from now on, and did not before: all that settles does so from now."""
    settles = (DataSpan.run_id == run_row.id) & DataSpan.until.is_not(None)
    until = tx.now + settle_s(settings)
    tx.session.execute(update(DataSpan).where(settles).values(until=until))


def hear(tx: Transaction, run_row: Run, words: Sequence[Settled]) -> None:
    """Take in what fragments say; of those that are not known, or of another database, nothing.

    Nor of those that have not told what data they have: the word is older than this database.
    """
    newest = tx.session.get_one(Plane, 1).membership_version
    said = {word.fragment: word.membership for word in words if word.membership <= newest}
    known = select(Fragment).where(
        Fragment.run_id == run_row.id, Fragment.number.in_(said), Fragment.settled >= 0
    )
    for row in tx.session.scalars(known):
        row.settled = max(row.settled, said[row.number])


def hold_back(tx: Transaction) -> None:
    """We were away: what settles goes on to, until sync services have told what came of it."""
    until = tx.now + HEARD_S
    tx.session.execute(update(DataSpan).where(DataSpan.until < until).values(until=until))
