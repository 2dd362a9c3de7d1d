"""How long leased data settles whose life is gone: while a round may be open that has it.

A round is open for ever while the run is paused or lacks its ``min_replicas``. So what settles
begins anew when rounds close again, and not only when somebody asks for data. Decides nothing else.
"""

from __future__ import annotations

from sqlalchemy import update

from syncline_control.tables import DataSpan, Run
from syncline_control.transaction import Transaction
from syncline_proto.settings import RunSettings

HEARD_S = 15.0
"""Sync services ask again within 5 s, and tell at once what waits."""


def settle_s(settings: RunSettings) -> float:
    """How long a round may be open once a life that has pushed to it is known to be gone.

    In a run that is not paused, and has its ``min_replicas``; else it may be open for ever.
    """
    return settings.timeouts.round_deadline_s + settings.timeouts.lease_s


def anew(tx: Transaction, run_row: Run, settings: RunSettings) -> None:
    """Rounds close from now on, and did not before: all that settles does so from now."""
    settles = (DataSpan.run_id == run_row.id) & DataSpan.until.is_not(None)
    until = tx.now + settle_s(settings)
    tx.session.execute(update(DataSpan).where(settles).values(until=until))


def hold_back(tx: Transaction) -> None:
    """We were away: what settles goes on to, until sync services have told what came of it."""
    until = tx.now + HEARD_S
    tx.session.execute(update(DataSpan).where(DataSpan.until < until).values(until=until))
