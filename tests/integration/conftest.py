"""What tests of several files start from: the control plane's state, processes, a corpus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from syncline_control.state import State
from syncline_testing import warm
from syncline_testing.cluster import Cluster, Service
from syncline_testing.control import SQLITE, Clock, client_of
from syncline_testing.postgres import NoServer, Server, server
from syncline_testing.training import tiny_data

Service.begins = staticmethod(warm.begun)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server, for all tests of this process."""
    try:
        with server() as one:
            yield one
    except NoServer as why:
        pytest.skip(str(why))


@pytest.fixture
def database(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """An empty database; a file that is ``on_both`` has its tests once with each kind."""
    if getattr(request, "param", SQLITE) == SQLITE:
        return str(tmp_path / "control.db")
    return request.getfixturevalue("postgres").database()


@pytest.fixture
async def state(database: str, clock: Clock) -> AsyncIterator[State]:
    async with await State.open(database, clock=clock) as state:
        yield state


@pytest.fixture
async def api(state: State) -> AsyncIterator[httpx.AsyncClient]:
    """The control plane's REST, with nothing in it yet; a file may put its runs there."""
    async with client_of(state) as api:
        yield api


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Control plane and sync service, for all tests of a file: each has runs of its own name."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def control_alone(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of which only the control plane runs."""
    cluster = Cluster(tmp_path)
    try:
        cluster.control.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared tokens; many read them, nobody writes."""
    return tiny_data(tmp_path_factory.mktemp("data") / "tokens")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names no run to join."""
    for name in ("SYNCLINE_CONTROL", "SYNCLINE_RUN", "SYNCLINE_REPLICA"):
        monkeypatch.delenv(name, raising=False)
