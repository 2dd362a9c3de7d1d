"""The control plane's tables.

Times are wall-clock seconds since 1970, so that they mean something after a restart. Views and
settings are kept as the JSON text of their contract (proto/rest.py); what is searched, counted
or changed on its own has a column. Decides nothing, and opens nothing (``database``).
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA = 11
"""Grows when the tables change; another number is refused rather than guessed at."""

BigKey = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts up only an INTEGER primary key; it holds 64 bits all the same."""


class Table(DeclarativeBase):
    type_annotation_map: ClassVar[dict[Any, Any]] = {int: BigInteger, float: Double, str: Text}


class Plane(Table):
    """One row: what belongs to the control plane as a whole."""

    __tablename__ = "plane"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    schema_number: Mapped[int]
    membership_version: Mapped[int] = mapped_column(default=1)


class Watch(Table):
    """A control plane on this database: who looks after the leases, and until when it is away."""

    __tablename__ = "watches"

    instance: Mapped[str] = mapped_column(String(32), primary_key=True)
    since: Mapped[float]
    due: Mapped[float]
    """When it is to look at the leases again; who is alone leaves it as it was."""


class Run(Table):
    __tablename__ = "runs"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    state: Mapped[str] = mapped_column(String(16), index=True)
    settings: Mapped[str]
    settings_version: Mapped[int] = mapped_column(default=1)
    job: Mapped[str] = mapped_column(deferred=True)
    """It may be long, and hardly anybody asks for it."""
    origin: Mapped[str | None]
    """JSON: the checkpoint from which it began."""
    created_at: Mapped[float]
    ended_at: Mapped[float | None]
    replicas_seen: Mapped[int] = mapped_column(default=0)
    """How many names have come; the next one's ordinal."""
    replicas_wanted: Mapped[int | None]
    """As many as somebody has said there should be."""
    revision: Mapped[int] = mapped_column(default=0)
    rounds: Mapped[int] = mapped_column(default=0)
    exclusions: Mapped[int] = mapped_column(default=0)
    committed_tokens: Mapped[int] = mapped_column(default=0)
    leases_lost: Mapped[int] = mapped_column(default=0)
    phase: Mapped[int] = mapped_column(default=0)
    """Of the synchronous phase, where several sync services share the run: how often it began."""
    phase_ended: Mapped[bool] = mapped_column(default=False)
    phase_offered: Mapped[str] = mapped_column(default="[]")
    """JSON: index of each service that has all its offers."""
    fragments: Mapped[int] = mapped_column(default=0)
    """Of its layout; 0 until a sync service has told."""
    dataset: Mapped[str | None]
    """JSON, of leased data: what the first replica that asked for any named."""
    data_next: Mapped[int] = mapped_column(default=0)
    """From there on, on the track of all epochs, nobody was ever given any."""


class Replica(Table):
    """The newest life of each replica name; earlier lives are in the event log."""

    __tablename__ = "replicas"
    __table_args__ = (
        UniqueConstraint("run_id", "name"),
        Index("ix_replicas_lease", "state", "lease_until"),
    )

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    name: Mapped[str] = mapped_column(String(63))
    ordinal: Mapped[int]
    incarnation: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    lease_until: Mapped[float]
    lease_s: Mapped[float]
    heard_at: Mapped[float]
    joined_at: Mapped[float]
    ranks: Mapped[int]
    host: Mapped[str]
    pid: Mapped[int]
    fingerprint: Mapped[str]
    progress: Mapped[str]
    loss: Mapped[float | None]
    taking_part: Mapped[bool] = mapped_column(default=False)
    shares: Mapped[str] = mapped_column(default="{}")
    """JSON: fragment -> [weight, z] of this life's last round of it."""
    exclusions: Mapped[int] = mapped_column(default=0)
    steps_per_second: Mapped[float | None]
    """As it last said, without its waits."""
    pace: Mapped[float | None]
    slow_since: Mapped[float | None]
    straggles: Mapped[bool] = mapped_column(default=False)
    step_share: Mapped[float] = mapped_column(default=1.0)
    least_since: Mapped[float | None]
    """Of the last look at it (``core/stragglers``)."""
    points_unseen: Mapped[int] = mapped_column(default=0)
    """Points added since its curves were last counted."""


class Fragment(Table):
    """Where each fragment of a run was last reported to stand."""

    __tablename__ = "fragments"

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    revision: Mapped[int]
    committed_tokens: Mapped[int]
    committed_at: Mapped[float]
    contributors: Mapped[str] = mapped_column(default="[]")
    """JSON: [replica, incarnation] of each push in its last round."""
    data: Mapped[str | None]
    """JSON: [trained, excluded], as far as that was told before the run had a dataset."""
    settled: Mapped[int] = mapped_column(default=0)
    """Nothing is open in it of lives that this version of the membership does not name; -1: rounds
    were told of, and not yet all that it has committed before them."""


class DataSpan(Table):
    """Sequences of leased data that are not done (``core/ledger``), on the track of all epochs."""

    __tablename__ = "data_spans"

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    start: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    stop: Mapped[int]
    replica: Mapped[str | None] = mapped_column(String(63))
    incarnation: Mapped[int]
    number: Mapped[int]
    """Of the grant."""
    covered: Mapped[str]
    """In hexadecimal digits."""
    own: Mapped[str]
    """Likewise."""
    folded: Mapped[bool]
    until: Mapped[float | None]
    gone: Mapped[int]


class DataDone(Table):
    """What of leased data is done, on that track: in neighbouring rows, if not alike."""

    __tablename__ = "data_done"

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    start: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    stop: Mapped[int]
    trained: Mapped[bool]
    """Else excluded."""


class Round(Table):
    __tablename__ = "rounds"
    __table_args__ = (
        # A sync service that saw no answer sends its report again; it must not count twice.
        UniqueConstraint("run_id", "fragment", "kind", "revision", "gradient_step", "committed_at"),
        Index("ix_rounds_newest", "run_id", "id"),
    )

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    fragment: Mapped[int]
    kind: Mapped[str] = mapped_column(String(16))
    revision: Mapped[int]
    gradient_step: Mapped[int]
    committed_at: Mapped[float]
    report: Mapped[str]


class Point(Table):
    """One point of a loss curve."""

    __tablename__ = "points"
    __table_args__ = (Index("ix_points_curve", "run_id", "replica", "kind", "id"),)

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    replica: Mapped[str] = mapped_column(String(63))
    kind: Mapped[str] = mapped_column(String(16))
    tokens: Mapped[int]
    loss: Mapped[float]
    time: Mapped[float]


class EventRow(Table):
    __tablename__ = "events"
    __table_args__ = (Index("ix_events_run", "run", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    time: Mapped[float]
    run: Mapped[str | None] = mapped_column(String(63))
    replica: Mapped[str | None] = mapped_column(String(63))
    kind: Mapped[str] = mapped_column(String(64))
    message: Mapped[str]


class SyncService(Table):
    __tablename__ = "sync_services"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    address: Mapped[str]
    index: Mapped[int]
    shards: Mapped[int]
    instance: Mapped[str]
    replaced: Mapped[str] = mapped_column(default="[]")
    """JSON: instances of this name that others have replaced, the latest of them last."""
    lease_until: Mapped[float]
    heard_at: Mapped[float]
    alive: Mapped[bool]
