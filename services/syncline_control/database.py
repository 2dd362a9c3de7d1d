"""How the control plane's database is named, opened and made ready.

SQLite in a file of ours, or PostgreSQL (``postgres``). What is in it, ``tables`` says. Decides
nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.orm import Session

from syncline_control import postgres
from syncline_control.tables import SCHEMA, Plane, Table
from syncline_proto import locks
from syncline_proto.errors import ConfigError, StoreError


def database_url(path_or_url: str) -> str:
    """Return a SQLAlchemy URL: a path means a SQLite file, whose folder is made.

    Raises:
        ConfigError: the path is a folder, or it is no file but memory, or a URI of SQLite's own.
        StoreError: its folder cannot be made.
    """
    if _is_memory(path_or_url):
        raise ConfigError("database: memory forgets every run at the end; name a file.")
    if "://" in path_or_url:
        if _is_uri(path_or_url):
            raise ConfigError("database: name a file by its path, not by a file: URI of SQLite.")
        return path_or_url
    path = Path(path_or_url).expanduser().resolve()
    if path.is_dir():
        raise ConfigError(f"database: {path} is a folder; name a file in it, or give a URL.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"database: cannot make {path.parent} ({error.strerror}); "
            "choose another with --database."
        ) from None
    return f"sqlite:///{path}"


def _is_memory(text: str) -> bool:
    """Whether a URL names SQLite without a file; or SQLite's own name for that."""
    url = _sqlite(text)
    if url is None:
        return text == ":memory:"
    return ":memory:" in (url.database or ":memory:") or url.query.get("mode") == "memory"


def _is_uri(text: str) -> bool:
    """Whether SQLite would read options out of the name: two names of one file would differ."""
    url = _sqlite(text)
    return url is not None and (url.database or "").startswith("file:")


def _sqlite(text: str) -> URL | None:
    """A URL of SQLite; None for others, and of a malformed one ``connect`` says more."""
    try:
        url = make_url(text)
        return url if url.get_backend_name() == "sqlite" else None
    except ArgumentError:
        return None


def connect(url: str) -> Engine:
    """Return an engine; nothing is opened yet.

    Raises:
        ConfigError: the URL is malformed, of another database than these two, or the driver is
            not installed.
    """
    try:
        parsed = make_url(url)
        if parsed.drivername in postgres.SCHEMES:
            return postgres.engine(parsed)
        if parsed.get_backend_name() != "sqlite":
            raise ArgumentError
        engine = create_engine(parsed)
    except (ArgumentError, ValueError):
        raise ConfigError(
            "database: not a path and not a URL like postgresql://user@host/name."
        ) from None
    event.listen(engine, "connect", _tune_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def is_shared(engine: Engine) -> bool:
    """Whether several control planes may be on this database at once."""
    return engine.dialect.name == "postgresql"


def only_owner(engine: Engine) -> IO[bytes] | None:
    """Lock a SQLite file until the answer is closed, or the process ends, however it ends.

    None for a database that is no file of ours; that one may have several.

    Raises:
        ConfigError: another control plane has it, or could have it by another name.
        StoreError: the lock file cannot be made or locked.
    """
    name = engine.url.database
    if engine.dialect.name != "sqlite" or not name or name == ":memory:":
        return None
    file = Path(name).resolve()  # whichever link leads to it
    if _names(file) > 1:
        raise ConfigError(
            f"database: {file} has a second name (a hard link), and SQLite keeps a log beside "
            "each: what is written by one is lost by the other. Remove one, or copy the file."
        )
    taken = f"Another control plane keeps its state in {file}"
    return locks.only_owner(Path(f"{file}.lock"), taken, "--database")


def _names(file: Path) -> int:
    """How many a file has; 0 if it is not there yet, or cannot be reached, as opening it tells."""
    try:
        return file.stat().st_nlink
    except OSError:
        return 0


def prepare(engine: Engine) -> None:
    """Make the tables that are missing.

    Raises:
        StoreError: the database cannot be opened, or was made by another version.
    """
    try:
        with Session(engine) as session, session.begin():
            if is_shared(engine):
                postgres.take_turn(session)
            Table.metadata.create_all(session.connection())
            plane = session.get(Plane, 1)
            if plane is None:
                session.add(Plane(id=1, schema_number=SCHEMA))
            elif plane.schema_number != SCHEMA:
                raise StoreError(
                    f"The database has tables of version {plane.schema_number} and this program "
                    f"needs {SCHEMA}; use another database or another Syncline."
                )
    except SQLAlchemyError as error:
        raise refused(engine, error) from error


def refused(engine: Engine, error: SQLAlchemyError) -> StoreError:
    """Return our error for a database that does not do what it was asked, in one sentence."""
    cause = getattr(error, "orig", None) or error
    said = str(cause).strip() or type(cause).__name__
    reason = said.splitlines()[0].rstrip(".")
    where = (is_shared(engine) and engine.url.host) or engine.url.database
    return StoreError(
        f"The database at {where} failed ({reason}); check that it is up and can be written."
    )


def _tune_sqlite(connection: Any, _record: Any) -> None:
    """Readers never wait (WAL); a commit is on the disk: an incarnation is never given twice."""
    connection.isolation_level = None  # Python's own BEGIN comes too late for a savepoint
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
