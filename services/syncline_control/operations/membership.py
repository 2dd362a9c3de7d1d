"""Who takes part in what: the one thing that sync services must know."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import func, select

from syncline_control.core.leases import HELD
from syncline_control.core.runs import ENDED
from syncline_control.operations import runs
from syncline_control.tables import DataSpan, Plane, Replica, Run, Watch
from syncline_control.transaction import Transaction
from syncline_proto.rest import Member, Membership, RunMembership, RunState


def view(tx: Transaction, run: str | None = None) -> Membership:
    """Return every run that has not ended, or the one that is named, ended or not.

    Raises:
        RunUnknown: no run has this name.
    """
    if run is None:
        query = select(Run).where(Run.state.not_in(ENDED)).order_by(Run.name)
        rows = list(tx.session.scalars(query))
    else:
        rows = [runs.find(tx, run)]
    members = _members(tx, [row.id for row in rows])
    settling = _settling(tx, [row.id for row in rows])
    newest = select(Watch.instance).order_by(Watch.since.desc(), Watch.instance).limit(1)
    return Membership(
        instance=tx.session.scalar(newest) or "",
        version=tx.session.get_one(Plane, 1).membership_version,
        runs=[
            RunMembership(
                run=row.name,
                state=RunState(row.state),
                settings=runs.settings_of(row),
                settings_version=row.settings_version,
                members=members[row.id],
                origin=runs.origin_of(row),
                revision=row.revision,
                phase=row.phase,
                phase_ended=row.phase_ended,
                settling=settling.get(row.id, 0),
            )
            for row in rows
        ],
    )


def _members(tx: Transaction, run_ids: list[int]) -> defaultdict[int, list[Member]]:
    members: defaultdict[int, list[Member]] = defaultdict(list)
    query = (
        select(Replica.run_id, Replica.name, Replica.incarnation, Replica.ranks)
        .where(Replica.run_id.in_(run_ids), Replica.state.in_(HELD))
        .order_by(Replica.ordinal)
    )
    for run_id, name, incarnation, ranks in tx.session.execute(query):
        members[run_id].append(Member(replica=name, incarnation=incarnation, ranks=ranks))
    return members


def _settling(tx: Transaction, run_ids: list[int]) -> dict[int, int]:
    """The newest version as of which somebody is gone whose data settles, by run."""
    query = (
        select(DataSpan.run_id, func.max(DataSpan.gone))
        .where(DataSpan.run_id.in_(run_ids), DataSpan.gone > 0)
        .group_by(DataSpan.run_id)
    )
    return {run_id: version for run_id, version in tx.session.execute(query)}
