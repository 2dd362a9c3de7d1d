"""One transaction: what an operation works in, and what it leaves for others to notice.

An operation is a plain function of a Transaction and its arguments. It reads and writes rows,
says what happened (``record``) and that the membership changed (``bump``), and returns a view.
It raises to undo everything. It never waits, and knows time only as ``now``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from syncline_control.tables import EventRow, Plane
from syncline_proto.names import RUN_DAMAGED

EVENTS_KEPT = 50_000
MESSAGE_CHARACTERS_MAX = 2_000


@dataclass(slots=True, kw_only=True)
class Transaction:
    """Invariant: ``kinds`` and ``membership_changed`` are acted upon only after the commit."""

    session: Session
    now: float
    """Seconds since 1970."""
    late_s: float = 0.0
    """How much later than planned the leases are looked at; 0 when all goes well."""
    kinds: list[str] = field(default_factory=list[str])
    """The kinds of the events recorded."""
    membership_changed: bool = False

    def record(
        self, kind: str, message: str, *, run: str | None = None, replica: str | None = None
    ) -> None:
        """Add a line to the event log; the oldest beyond the bound are forgotten."""
        text = message.replace("\x00", "")[:MESSAGE_CHARACTERS_MAX]
        row = EventRow(time=self.now, run=run, replica=replica, kind=kind, message=text)
        self.session.add(row)
        self.kinds.append(kind)

    def bump(self, least: int = 0) -> None:
        """Give the membership its next version, from ``least``; once a transaction is enough."""
        if not self.membership_changed:
            self.membership_changed = True
            plane = self.session.get_one(Plane, 1)
            plane.membership_version = max(plane.membership_version + 1, least)

    def forget_old_events(self) -> None:
        """Keep the newest events, and of the older ones each run's last of damage.

        Called once before the commit.
        """
        if self.kinds:
            self.session.flush()
            newest = self.session.scalar(select(func.max(EventRow.id))) or 0
            is_old = EventRow.id <= newest - EVENTS_KEPT
            of_damage = select(func.max(EventRow.id)).where(is_old, EventRow.kind == RUN_DAMAGED)
            kept = of_damage.group_by(EventRow.run)
            self.session.execute(delete(EventRow).where(is_old, EventRow.id.not_in(kept)))
