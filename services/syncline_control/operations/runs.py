"""Runs: create, look at, change, pause, resume, stop, finish."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Integer, case, cast, func, select

from syncline_control.core import runs as life
from syncline_control.core.leases import HELD
from syncline_control.operations import settling
from syncline_control.tables import Replica, Run
from syncline_control.transaction import Transaction
from syncline_proto.differing import changes
from syncline_proto.errors import InvalidRequest, Overloaded, RunConflict, RunUnknown
from syncline_proto.rest import Origin, RunCreate, RunState, RunView, Scale, SettingsPatch
from syncline_proto.settings import RunSettings

RUNS_MAX = 10_000
JOB_CHARACTERS_MAX = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """What a run's replicas come to."""

    alive: int = 0
    taking_part: int = 0
    loss: float | None = None
    idle_since: float | None = None
    """When the last lease ended; None while one is held."""


def create(tx: Transaction, body: RunCreate) -> tuple[RunView, bool]:
    """Return the run and whether it is new.

    Raises:
        RunConflict: it exists with other settings (the message names them), or did
            not begin from the checkpoint that is named.
        Overloaded: there are too many runs.
        InvalidRequest: the job is too long.
    """
    row = tx.session.scalar(select(Run).where(Run.name == body.name))
    if row is not None:
        if body.origin is not None and body.origin != origin_of(row):
            raise RunConflict(f"Run {body.name} exists already; restore under another name.")
        life.check_equal(body.name, RunState(row.state), settings_of(row), body.settings)
        return view(tx, row), False
    if (tx.session.scalar(select(func.count()).select_from(Run)) or 0) >= RUNS_MAX:
        raise Overloaded(f"There are {RUNS_MAX} runs already; start with another database.")
    row = Run(
        name=body.name,
        state=RunState.RUNNING,
        settings=body.settings.model_dump_json(),
        settings_version=1,
        job=_job_text(body.job),
        origin=body.origin.model_dump_json() if body.origin else None,
        created_at=tx.now,
    )
    tx.session.add(row)
    tx.session.flush()
    since = f" from the checkpoint {body.origin.checkpoint}" if body.origin else ""
    tx.record("run.created", f"Run {body.name} was created{since}.", run=body.name)
    tx.bump()
    return view(tx, row), True


def get(tx: Transaction, run: str) -> RunView:
    return view(tx, find(tx, run))


def newest(tx: Transaction, limit: int) -> list[RunView]:
    """Return the newest runs, newest first, without their jobs."""
    rows = tx.session.scalars(select(Run).order_by(Run.id.desc()).limit(limit)).all()
    return views(tx, rows)


def act(tx: Transaction, run: str, what: life.Act) -> RunView:
    """Move the run on in its life; nothing happens if it is there already.

    Raises:
        RunConflict: its state does not allow it.
    """
    row = find(tx, run)
    _move(tx, row, what)
    return view(tx, row)


def finish_if_done(tx: Transaction, row: Run) -> None:
    """End a run whose token budget is committed and whose replicas are gone.

    It is they who say that it is finished; those that ended while nobody heard them said so in
    vain. As long as one is alive, it may have a last round to take.
    """
    budget = settings_of(row).token_budget
    # Before revision 1 there is no model to end with; and a run that nobody joined ends by nobody.
    is_done = budget is not None and row.revision > 0 and row.committed_tokens >= budget
    if is_done and row.state not in life.ENDED and row.replicas_seen and not alive(tx, row):
        _move(tx, row, life.Act.FINISH)


def see_minimum(tx: Transaction, row: Run, grown: int) -> None:
    """So many more replicas are alive than before: tell if there are enough now, or too few."""
    tx.session.flush()
    there, settings = alive(tx, row), settings_of(row)
    least = settings.min_replicas
    if there - grown < least <= there:
        settling.anew(tx, row, settings)
    told = life.crossed(row.name, RunState(row.state), there - grown, there, least)
    if told is not None:
        tx.record(*told, run=row.name)


def _move(tx: Transaction, row: Run, what: life.Act) -> None:
    """Take an act, and tell of it if it changes the state.

    Raises:
        RunConflict: the run's state does not allow it.
    """
    state = life.after(RunState(row.state), what, row.name)
    if state != row.state:
        row.state = state
        row.ended_at = tx.now if state in life.ENDED else None
        if what is life.Act.RESUME:
            settling.anew(tx, row, settings_of(row))
        message = life.told(row.name, what, settings_of(row).token_budget)
        tx.record(f"run.{_DONE[what]}", message, run=row.name)
        tx.bump()


def alive(tx: Transaction, row: Run) -> int:
    """Count the leases that are held."""
    held = select(func.count()).where(Replica.run_id == row.id, Replica.state.in_(HELD))
    return tx.session.scalar(held) or 0


def patch_settings(tx: Transaction, run: str, body: SettingsPatch) -> RunView:
    """Change live settings; nothing happens if they are so already.

    Raises:
        InvalidRequest: a key is not live or a value is out of range.
        RunConflict: the run has ended.
    """
    row = find(tx, run)
    refuse_if_ended(row)
    old = settings_of(row)
    new = life.patched(old, body.settings)
    what = changes(old, new)
    if what:
        row.settings = new.model_dump_json()
        row.settings_version += 1
        tx.record("settings.changed", f"From the next round on, {what}.", run=run)
        tx.bump()
    return view(tx, row)


def scale(tx: Transaction, run: str, body: Scale) -> RunView:
    """Say how many replicas there should be; scalers look at it.

    Raises:
        InvalidRequest: the run's settings do not allow so many, or so few.
        RunConflict: the run has ended.
    """
    row = find(tx, run)
    refuse_if_ended(row)
    life.check_scale(run, settings_of(row), body.replicas)
    if row.replicas_wanted != body.replicas:
        row.replicas_wanted = body.replicas
        told = f"{run} should have {body.replicas} replica{'' if body.replicas == 1 else 's'}."
        if body.replicas is None:
            told = f"{run} has as many replicas as come."
        tx.record("run.scaled", told, run=run)
    return view(tx, row)


def find(tx: Transaction, run: str) -> Run:
    """Return the run's row.

    Raises:
        RunUnknown: there is none.
    """
    row = tx.session.scalar(select(Run).where(Run.name == run))
    if row is None:
        raise RunUnknown(f"There is no run {run}; `syncline runs ls` lists those there are.")
    return row


def refuse_if_ended(row: Run) -> None:
    """
    Raises:
        RunConflict: the run is stopped or finished.
    """
    if row.state in life.ENDED:
        raise RunConflict(f"Run {row.name} is {row.state}; start another run.")


def settings_of(row: Run) -> RunSettings:
    return _settings(row.settings)


def origin_of(row: Run) -> Origin | None:
    return Origin.model_validate_json(row.origin) if row.origin else None


@lru_cache(maxsize=1024)
def _settings(text: str) -> RunSettings:
    """Every heartbeat asks for them, they hardly ever change, and nobody can change the answer."""
    return RunSettings.model_validate_json(text)


def view(tx: Transaction, row: Run) -> RunView:
    return views(tx, [row])[0].model_copy(update={"job": json.loads(row.job)})


def views(tx: Transaction, rows: Iterable[Run]) -> list[RunView]:
    """Without their jobs: those of many runs are long."""
    listed = list(rows)
    crowds = _crowds(tx, [row.id for row in listed])
    return [_view(row, crowds.get(row.id, Crowd())) for row in listed]


def _crowds(tx: Transaction, run_ids: list[int]) -> Mapping[int, Crowd]:
    """Count the replicas of each run; its loss is that of the held ones, or of all at the end."""
    held = Replica.state.in_(HELD)
    query = (
        select(
            Replica.run_id,
            func.sum(cast(held, Integer)),
            func.sum(cast(held & Replica.taking_part, Integer)),
            func.avg(case((held, Replica.loss))),
            func.avg(Replica.loss),
            func.max(Replica.lease_until),
        )
        .where(Replica.run_id.in_(run_ids))
        .group_by(Replica.run_id)
    )
    return {
        run_id: Crowd(
            alive=int(alive),
            taking_part=int(taking_part),
            loss=loss_of_held if loss_of_held is not None else loss_of_all,
            idle_since=None if alive else last_until,
        )
        for run_id, alive, taking_part, loss_of_held, loss_of_all, last_until in tx.session.execute(
            query
        )
    }


def _view(row: Run, crowd: Crowd) -> RunView:
    settings = settings_of(row)
    return RunView(
        name=row.name,
        state=RunState(row.state),
        settings=settings,
        settings_version=row.settings_version,
        origin=origin_of(row),
        created_at=row.created_at,
        ended_at=row.ended_at,
        replicas_alive=crowd.alive,
        replicas_taking_part=crowd.taking_part,
        replicas_wanted=row.replicas_wanted,
        revision=row.revision,
        fragment_rounds=row.rounds,
        exclusions=row.exclusions,
        committed_tokens=row.committed_tokens,
        loss=crowd.loss,
        idle_since=None if row.state in life.ENDED else crowd.idle_since,
        waits_for=life.waits_for(RunState(row.state), crowd.alive, settings.min_replicas),
    )


def _job_text(job: dict[str, Any]) -> str:
    try:
        text = json.dumps(job, allow_nan=False, ensure_ascii=False)
        text.encode()
    except ValueError:
        raise InvalidRequest(
            "job: every number must be finite, and every text must be valid Unicode."
        ) from None
    if len(text) > JOB_CHARACTERS_MAX:
        raise InvalidRequest(f"job: longer than {JOB_CHARACTERS_MAX} characters as JSON.")
    return text


_DONE = {
    life.Act.PAUSE: "paused",
    life.Act.RESUME: "resumed",
    life.Act.STOP: "stopped",
    life.Act.FINISH: "finished",
}
