"""What sync services tell: rounds and events of a run. Telling it twice counts once."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import delete, select

from syncline_control.core.leases import HELD
from syncline_control.operations import books, data, events, runs, settling
from syncline_control.operations.checks import finite
from syncline_control.tables import Fragment, Replica, Round, Run
from syncline_control.transaction import Transaction
from syncline_proto.counts import FRAGMENTS_MAX
from syncline_proto.errors import InvalidRequest
from syncline_proto.names import AHEAD_S_MAX, ROUNDS_MAX
from syncline_proto.reports import ContributionView, Reports, RoundReport
from syncline_proto.tokens import run_tokens

ROUNDS_KEPT = ROUNDS_MAX

COUNT_MAX = (1 << 53) - 1
"""Revisions, steps and tokens; every reader of JSON keeps so much exactly."""

NAMED_AT_ONCE = 500
"""Replicas looked up by name in one statement: databases bound the length of a list."""


def add(tx: Transaction, run: str, body: Reports) -> None:
    """Take in a batch; rounds that are there already are passed over.

    Raises:
        RunUnknown: there is no such run.
        InvalidRequest: too many fragments, or what cannot be; nothing of the batch is kept.
    """
    run_row = runs.find(tx, run)
    for number, report in enumerate(body.rounds):
        _refuse_what_cannot_be(tx, f"rounds.{number}", report)
    if body.rounds:
        _add_rounds(tx, run_row, body.rounds)
    if body.settled:  # not before the rounds that it is said after
        settling.hear(tx, run_row, body.settled)
        books.see_lives(tx, run_row)
    for event in body.events:
        tx.record(event.kind, event.message, run=run, replica=event.replica)


def newest_rounds(tx: Transaction, run: str, limit: int) -> list[RoundReport]:
    """Return the newest rounds, oldest of them first."""
    run_row = runs.find(tx, run)
    query = select(Round.report).where(Round.run_id == run_row.id)
    reports = tx.session.scalars(query.order_by(Round.id.desc()).limit(limit)).all()
    return [RoundReport.model_validate_json(report) for report in reversed(reports)]


def _add_rounds(tx: Transaction, run_row: Run, reports: list[RoundReport]) -> None:
    named = {one.replica for report in reports for one in report.contributions}
    replicas = _replicas(tx, run_row, named)
    fragments = {
        row.number: row
        for row in tx.session.scalars(select(Fragment).where(Fragment.run_id == run_row.id))
    }
    stood = {number: _stand(row) for number, row in fragments.items()}
    known = _known(tx, run_row, reports)
    after_event = events.newest_id(tx, None)
    for report in reports:
        row = fragments.get(report.fragment)
        if (key := _key(report)) in known or _says_nothing(row, report):
            continue
        if row and not _is_later(report, _stand(row)) and _is_forgotten(tx, run_row, report):
            continue
        known.add(key)
        tx.session.add(_row(run_row, report, after_event))
        _move_fragment(tx, run_row, fragments, report)
        if report.kind != "parameters":  # an offer sets a value; nobody's push is judged
            run_row.rounds += 1
            for contribution in report.contributions:
                _judge(run_row, replicas.get(contribution.replica), report, contribution)
    # All services say the same of a run: so a wrong word is not the last, nor what it named.
    run_row.fragments = max(report.fragments for report in reports) or run_row.fragments
    own = {n: row for n, row in fragments.items() if n < run_row.fragments} or fragments
    before = run_row.revision
    if len(own) >= run_row.fragments:  # of all others nobody knows yet how far they are
        run_row.revision = min(row.revision for row in own.values())
    if run_row.revision < before:  # sync services compare it with what they have
        tx.bump()
    run_row.committed_tokens = run_tokens({n: row.committed_tokens for n, row in own.items()})
    _see_who_takes_part(run_row, replicas, fragments, reports)
    tx.session.flush()
    # Where a fragment stood before what was told since says nothing of what it has lost.
    newest = [
        one
        for one in reports
        if one.data is None
        or one.fragment not in stood
        or not _is_earlier(one, stood[one.fragment])
    ]
    for one in newest:
        row = fragments.get(one.fragment)
        if row is not None and one.data is not None:  # and so all that it has
            row.settled = max(row.settled, 0)
    data.told(tx, run_row, newest)
    _forget_old_rounds(tx, run_row)
    runs.finish_if_done(tx, run_row)


def _replicas(tx: Transaction, run_row: Run, named: Collection[str]) -> dict[str, Replica]:
    """Those that are ``named``, and all that hold a lease; no report changes any other.

    A run may have had thousands, and a sync service reports several times a second.
    """
    mine = select(Replica).where(Replica.run_id == run_row.id)
    rows = list(tx.session.scalars(mine.where(Replica.state.in_(HELD))))
    others = sorted(set(named) - {row.name for row in rows})
    for start in range(0, len(others), NAMED_AT_ONCE):
        some = others[start : start + NAMED_AT_ONCE]
        rows += tx.session.scalars(mine.where(Replica.name.in_(some)))
    return {row.name: row for row in rows}


class _Stand(NamedTuple):
    """How far a fragment has come, and when by the clock of its service.

    What has come further is later, whatever that clock says: it may have been set back, or the
    service may be on another machine. Of what has not, only the clock can tell what comes late from
    a fragment that went back.
    """

    progress: tuple[int, int]
    at: float


def _stand(one: Fragment | RoundReport) -> _Stand:
    return _Stand((one.revision, one.committed_tokens), one.committed_at)


def _is_later(report: RoundReport, stood: _Stand) -> bool:
    told = _stand(report)
    return told.progress > stood.progress or told.at > stood.at


def _is_earlier(report: RoundReport, stood: _Stand) -> bool:
    told = _stand(report)
    return told.progress < stood.progress and told.at < stood.at


def _refuse_what_cannot_be(tx: Transaction, where: str, report: RoundReport) -> None:
    """Keep one wrong report from standing for a run: later ones are held against it."""
    counts = {
        f"{where}.revision": report.revision,
        f"{where}.gradient_step": report.gradient_step,
        f"{where}.committed_tokens": report.committed_tokens,
    }
    for number, contribution in enumerate(report.contributions):
        path = f"{where}.contributions.{number}"
        counts[f"{path}.tokens"] = contribution.tokens
        counts[f"{path}.inner_steps"] = contribution.inner_steps
    for name, count in counts.items():
        if not 0 <= count <= COUNT_MAX:
            raise InvalidRequest(f"{name} is {count}; a count is from 0 to {COUNT_MAX}.")
    if report.fragments > FRAGMENTS_MAX:
        raise InvalidRequest(f"{where}.fragments: a run has at most {FRAGMENTS_MAX}.")
    if report.fragment >= FRAGMENTS_MAX:  # the ledger keeps a bit for each below it, too
        raise InvalidRequest(f"{where}.fragment: a run has at most {FRAGMENTS_MAX}, from 0 on.")
    if report.fragments and report.fragment >= report.fragments:
        raise InvalidRequest(f"{where}.fragment: there are {report.fragments}, counted from 0.")
    if report.seconds < 0:
        raise InvalidRequest(f"{where}.seconds is {report.seconds:g}; no round takes less than 0.")
    # It may be behind: who was cut off tells of it late.
    if report.committed_at > tx.now + AHEAD_S_MAX:
        why = "is over a day ahead of the control plane's clock; set the clocks."
        raise InvalidRequest(f"{where}.committed_at {why}")


def _says_nothing(row: Fragment | None, report: RoundReport) -> bool:
    """A service that starts tells where its fragments stand: no round, where that is known."""
    if report.kind != "parameters" or row is None:
        return False
    return (row.revision, row.committed_tokens) == (report.revision, report.committed_tokens)


def _known(
    tx: Transaction, run_row: Run, reports: list[RoundReport]
) -> set[tuple[int, str, int, int, float]]:
    """The keys of the rounds that are there already, of the time that the reports tell of."""
    times = [report.committed_at for report in reports]
    query = select(
        Round.fragment, Round.kind, Round.revision, Round.gradient_step, Round.committed_at
    ).where(Round.run_id == run_row.id, Round.committed_at.between(min(times), max(times)))
    return {
        (number, kind, at, step, when) for number, kind, at, step, when in tx.session.execute(query)
    }


def _is_forgotten(tx: Transaction, run_row: Run, report: RoundReport) -> bool:
    """Whether a round is older than all that are kept, and others had to go: it was one of them.

    A service that starts tells the last rounds of its fragments again, however old they are.
    """
    times = select(Round.committed_at).where(Round.run_id == run_row.id)
    oldest = times.order_by(Round.id.desc()).offset(ROUNDS_KEPT - 1).limit(1)
    return (tx.session.scalar(oldest) or -math.inf) > report.committed_at


def _key(report: RoundReport) -> tuple[int, str, int, int, float]:
    """What tells a round of a run from every other."""
    return (
        report.fragment,
        report.kind,
        report.revision,
        report.gradient_step,
        report.committed_at,
    )


def _row(run_row: Run, report: RoundReport, after_event: int) -> Round:
    heard = report.model_copy(update={"after_event": after_event})
    fragment, kind, revision, gradient_step, committed_at = _key(report)
    return Round(
        run_id=run_row.id,
        fragment=fragment,
        kind=kind,
        revision=revision,
        gradient_step=gradient_step,
        committed_at=committed_at,
        report=heard.model_dump_json(exclude={"data"}),
    )


def _move_fragment(
    tx: Transaction, run_row: Run, fragments: dict[int, Fragment], report: RoundReport
) -> None:
    """Let the fragment stand where its latest round left it; a restore may move it back."""
    row = fragments.get(report.fragment)
    if row is None:
        row = Fragment(run_id=run_row.id, number=report.fragment, contributors="[]", settled=-1)
        if report.data is not None or report.kind == "parameters" and not report.revision:
            row.settled = 0  # all of it is told, or there is nothing before
        fragments[report.fragment] = row
        tx.session.add(row)
    elif _is_earlier(report, _stand(row)):
        return
    row.revision = report.revision
    row.committed_tokens = report.committed_tokens
    row.committed_at = report.committed_at
    if report.kind != "parameters":
        row.contributors = json.dumps(
            [[one.replica, one.incarnation] for one in report.contributions]
        )


def _judge(
    run_row: Run, replica: Replica | None, report: RoundReport, contribution: ContributionView
) -> None:
    """Write the verdict down beside the replica, if it is (still) known."""
    excluded = contribution.verdict == "anomalous"
    run_row.exclusions += excluded
    if replica is None:
        return
    replica.exclusions += excluded
    if replica.incarnation == contribution.incarnation:
        shares = json.loads(replica.shares)
        shares[str(report.fragment)] = [contribution.weight, finite(contribution.z)]
        replica.shares = json.dumps(shares)


def _see_who_takes_part(
    run_row: Run,
    replicas: Mapping[str, Replica],
    fragments: Mapping[int, Fragment],
    reports: Iterable[RoundReport],
) -> None:
    """Who was in the last round; where each push is a round of its own, who was in any."""
    present = {tuple(one) for row in fragments.values() for one in json.loads(row.contributors)}
    is_asynchronous = runs.settings_of(run_row).asynchronous
    if is_asynchronous:
        present |= {(c.replica, c.incarnation) for one in reports for c in one.contributions}
    for row in replicas.values():
        is_in = (row.name, row.incarnation) in present or (is_asynchronous and row.taking_part)
        row.taking_part = row.state in HELD and is_in


def _forget_old_rounds(tx: Transaction, run_row: Run) -> None:
    mine = Round.run_id == run_row.id
    last = select(Round.id).where(mine).order_by(Round.id.desc()).offset(ROUNDS_KEPT).limit(1)
    oldest = tx.session.scalar(last)
    if oldest is not None:
        tx.session.execute(delete(Round).where(mine, Round.id <= oldest))
