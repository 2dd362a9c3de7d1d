"""PostgreSQL: several control planes on one database, of which one at a time is at work.

Every transaction begins with a lock that all of them share, so operations see the database as
if each were alone, whichever process does them, and none of them can fail for another's sake. It
is the server's clock by which leases are judged, since two machines have two. What a commit
changes is told to the others (NOTIFY); whoever misses that looks by itself every ``LOOK_S``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import structlog
from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from syncline_proto.errors import ConfigError

SCHEMES = frozenset({"postgres", "postgresql", "postgresql+psycopg"})

LOCK = 0x53594E43
"""The key of the advisory lock; any number that no other program uses on our database."""

CHANNEL = "syncline_control"

LOOK_S = 5.0
"""So often those who wait look at the database, whatever was told."""

AGAIN_S = 1.0
"""Between two attempts to listen to a server that is away."""

CONNECTING = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
"""For libpq: a server that is gone without a word is known to be in about ten seconds."""

LIMITS = {
    # Who stands still in the middle holds up all others: its transaction is undone.
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "15s",
    "statement_timeout": "30s",
}

PASSING = ("40001", "40P01")
"""SQLSTATE of a transaction that was undone for another's sake."""

log = structlog.get_logger()


def engine(url: URL) -> Engine:
    """Return an engine; nothing is opened yet.

    Raises:
        ConfigError: the driver is not installed.
    """
    try:
        made = create_engine(
            url.set(drivername="postgresql+psycopg"),
            # A snapshot from before the lock would not show what was done until we got it.
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,  # a server may hang up between two transactions
            pool_size=1,
            connect_args={key: at for key, at in CONNECTING.items() if key not in url.query},
        )
    except ModuleNotFoundError:
        raise ConfigError(
            "database: PostgreSQL's driver is not installed; pip install 'syncline[postgres]'."
        ) from None
    event.listen(made, "connect", _limit)
    return made


def _limit(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        for name, most in LIMITS.items():
            cursor.execute(f"SET {name} = '{most}'")
    connection.commit()


def take_turn(session: Session) -> float:
    """Wait until no other control plane is at work, and return the server's time.

    Held until the transaction ends, however it ends. Seconds since 1970.
    """
    session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
    now = session.execute(text("SELECT EXTRACT(EPOCH FROM clock_timestamp())::float8"))
    return float(now.scalar_one())


def tell(session: Session, what: Iterable[str]) -> None:
    """Tell all who listen, once this transaction is committed."""
    said = {"channel": CHANNEL, "what": " ".join(what)}
    session.execute(text("SELECT pg_notify(:channel, :what)"), said)


def passes(error: SQLAlchemyError) -> bool:
    """Whether the same transaction may go well when it is tried again."""
    if not isinstance(error, DBAPIError):
        return False
    return error.connection_invalidated or getattr(error.orig, "sqlstate", None) in PASSING


async def listen(engine: Engine, heard: Callable[[list[str]], None]) -> None:
    """Hand over what is told, and an empty list where something may have been missed; for ever."""
    import psycopg

    args, options = engine.dialect.create_connect_args(engine.url)
    options = {**CONNECTING, **options}
    away = False
    while True:
        try:
            connecting = psycopg.AsyncConnection.connect(*args, autocommit=True, **options)
            async with await connecting as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                away = False
                while True:
                    heard([])
                    async for notice in connection.notifies(timeout=LOOK_S):
                        heard(notice.payload.split())
                    await connection.execute("SELECT 1")
        except Exception as error:  # the outermost loop of this task; those who wait look
            if not away:
                known = isinstance(error, psycopg.Error | OSError)
                reason = str(error).partition("\n")[0]
                log.warning("database.not_heard", reason=reason, exc_info=not known)
            away = True
        heard([])
        await asyncio.sleep(AGAIN_S)
