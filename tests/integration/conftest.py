"""What the tests of the control plane's REST share: a database, a clock, an open state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from syncline_control.state import State
from syncline_testing.control import Clock


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "control.db")


@pytest.fixture
async def state(database: str, clock: Clock) -> AsyncIterator[State]:
    async with await State.open(database, clock=clock) as state:
        yield state
