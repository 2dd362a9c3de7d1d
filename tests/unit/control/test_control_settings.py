"""The program's own settings: who may reach us, and which database is meant."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from syncline_control.database import connect, database_url, only_owner, prepare, refused
from syncline_control.notify import Bell
from syncline_control.settings import is_loopback, resolved
from syncline_proto.errors import ConfigError, Overloaded, StoreError


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("[::1]", True), ("localhost", True)]
    + [("0.0.0.0", False), ("::", False), ("10.0.0.5", False), ("example.org", False)],
)
def test_only_this_machine_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_an_open_host_wants_a_token_or_the_word_insecure() -> None:
    with pytest.raises(ConfigError, match="no token"):
        resolved({"host": "0.0.0.0"})
    assert resolved({"host": "0.0.0.0", "token": "s3cret"}).token is not None
    assert resolved({"host": "0.0.0.0", "insecure": True}).insecure


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNCLINE_CONTROL_PORT", "1234")
    assert resolved({"port": None}).port == 1234
    assert resolved({"port": 4321}).port == 4321


def test_a_wrong_setting_is_called_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^--port must be at most 65535"):
        resolved({"port": 70_000})
    monkeypatch.setenv("SYNCLINE_CONTROL_LOG_JSON", "perhaps")
    with pytest.raises(ConfigError, match="^SYNCLINE_CONTROL_LOG_JSON must be a valid boolean"):
        resolved({"log_json": None})


def test_a_secret_is_not_shown() -> None:
    assert "s3cret" not in repr(resolved({"token": "s3cret"}))


@pytest.mark.parametrize("flags", [{"port": 70_000}, {"port": -1}, {"token": ""}])
def test_a_wrong_setting_is_named(flags: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(flags))):
        resolved(flags)


@pytest.mark.parametrize("token", ["two words", "line\n", "wört"])
def test_a_token_that_no_caller_could_send_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ConfigError, match="token: it holds a line break, a space or") as refusal:
        resolved({"token": token})
    assert token not in refusal.value.message


def test_a_path_is_a_sqlite_file_whose_folder_is_made(tmp_path: Path) -> None:
    assert database_url(str(tmp_path / "a" / "b.db")) == f"sqlite:///{tmp_path}/a/b.db"
    assert (tmp_path / "a").is_dir()
    assert database_url("postgresql+psycopg://host/name") == "postgresql+psycopg://host/name"


@pytest.mark.parametrize(
    "url", [":memory:", "sqlite://", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true"]
)
def test_memory_is_no_database(url: str) -> None:
    with pytest.raises(ConfigError, match="name a file"):
        database_url(url)


def test_a_file_goes_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="by its path"):
        database_url(f"sqlite:///file:{tmp_path}/c.db?uri=true")


def test_a_file_has_one_owner_whichever_link_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "c.db")
    (tmp_path / "folder").symlink_to(tmp_path)
    lock = only_owner(connect(database_url(str(tmp_path / "c.db"))))
    assert lock is not None
    with lock:
        for path in ("link.db", "folder/c.db", "folder/link.db"):
            for name in (f"sqlite:///{tmp_path}/{path}", f"{tmp_path}/{path}"):
                with pytest.raises(ConfigError, match="Another control plane"):
                    only_owner(connect(database_url(name)))
    assert [path.name for path in tmp_path.glob("*.lock")] == ["c.db.lock"]


def test_a_file_of_two_names_is_refused_by_both(tmp_path: Path) -> None:
    """Each would have a lock and a log of its own."""
    (tmp_path / "c.db").touch()
    lock = only_owner(connect(database_url(str(tmp_path / "c.db"))))
    assert lock is not None
    (tmp_path / "link.db").hardlink_to(tmp_path / "c.db")
    for name in ("c.db", "link.db"):
        with pytest.raises(ConfigError, match=f"{name} has a second name"):
            only_owner(connect(database_url(str(tmp_path / name))))
    lock.close()


def test_a_database_that_fails_without_a_word_is_still_a_sentence() -> None:
    silent = DBAPIError(None, None, sqlite3.OperationalError())
    said = refused(connect("sqlite://"), silent).message
    assert "OperationalError" in said and said.endswith(".")


def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        database_url(str(tmp_path))


@pytest.mark.parametrize("url", ["nonsense://x", "postgresql+nodriver://x/y"])
def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="database"):
        connect(url)


def test_a_folder_that_cannot_be_made_is_the_stores_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make .*; choose another with --database"):
        database_url(str(tmp_path / "file" / "below" / "control.db"))


def test_a_file_that_is_no_database_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("This is not a database at all.\n" * 100)
    before = path.read_bytes()
    engine = connect(database_url(str(path)))
    try:
        with pytest.raises(StoreError, match="not a database"):
            prepare(engine)
    finally:
        engine.dispose()
    assert path.read_bytes() == before


def test_tables_of_another_version_are_refused(tmp_path: Path) -> None:
    engine = connect(database_url(str(tmp_path / "control.db")))
    try:
        prepare(engine)
        prepare(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE plane SET schema_number = 99")
        with pytest.raises(StoreError, match="version 99"):
            prepare(engine)
    finally:
        engine.dispose()


def test_a_ring_between_listening_and_waiting_is_heard() -> None:
    async def scenario() -> None:
        bell = Bell(1)
        ring = bell.listen()
        bell.ring()
        assert await bell.heard(ring, 30)
        assert not await bell.heard(bell.listen(), 0)

    asyncio.run(scenario())


def test_only_so_many_wait_for_a_bell() -> None:
    async def scenario() -> None:
        bell = Bell(1)
        waiting = asyncio.create_task(bell.heard(bell.listen(), 30))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await bell.heard(bell.listen(), 30)
        bell.ring()
        assert await waiting

    asyncio.run(scenario())


def test_a_closed_bell_holds_nobody() -> None:
    async def scenario() -> None:
        bell = Bell(1)
        waiting = asyncio.create_task(bell.heard(bell.listen(), 30))
        await asyncio.sleep(0)
        bell.close()
        assert not await waiting
        assert not await bell.heard(bell.listen(), 30)

    asyncio.run(scenario())
