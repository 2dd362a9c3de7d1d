"""/readyz follows the real database: not ready while that refuses, ready again afterwards."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path

import pytest
from sqlalchemy import text

from syncline_control.state import State
from syncline_control.transaction import Transaction
from syncline_proto.errors import StoreError, Unreachable
from syncline_testing.control import client_of


def pragma(tx: Transaction, setting: str) -> None:
    tx.session.execute(text(f"PRAGMA {setting}"))


@asynccontextmanager
async def locked(state: State, database: Path) -> AsyncGenerator[None]:
    """Another program writes for longer than we wait for it."""
    await state.do(pragma, "busy_timeout = 50")
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


@asynccontextmanager
async def read_only(state: State, _database: Path) -> AsyncGenerator[None]:
    await state.do(pragma, "query_only = 1")
    yield
    await state.do(pragma, "query_only = 0")


@asynccontextmanager
async def full(_state: State, database: Path) -> AsyncGenerator[None]:
    """No file may grow, as on a full disk; and nothing of this process may, so nothing prints."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = (path.stat().st_size for path in database.parent.glob(f"{database.name}*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


Refusal = Callable[[State, Path], AbstractAsyncContextManager[None]]


@pytest.mark.parametrize("refusal", [locked, read_only, full])
def test_not_ready_while_the_database_takes_no_writes(tmp_path: Path, refusal: Refusal) -> None:
    async def scenario() -> None:
        database = tmp_path / "c.db"
        async with await State.open(str(database)) as state, client_of(state) as api:
            assert (await api.get("/readyz")).text == "ready\n"
            async with refusal(state, database):
                answer = await api.post("/v1/runs", json={"name": "r"})
                assert answer.status_code == 500 and answer.json()["code"] == StoreError.code
                for _ in range(2):
                    answer = await api.get("/readyz")
                    assert answer.status_code == 503
                    assert answer.headers["content-type"] == "application/problem+json"
                    problem = answer.json()
                    assert problem["status"] == 503 and problem["code"] == Unreachable.code
                    assert "database" in problem["detail"]
                assert (await api.get("/healthz")).text == "ok\n"
            # Whoever is not ready is sent nothing but probes: they alone must show that it is.
            assert (await api.get("/readyz")).text == "ready\n"
            assert (await api.post("/v1/runs", json={"name": "r"})).status_code == 201

    asyncio.run(scenario())
