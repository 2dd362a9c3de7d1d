"""A control plane that runs and hears nobody holds all leases; where others are heard they end."""

from __future__ import annotations

import httpx
import pytest

from syncline_control.core import hearing
from syncline_control.state import State
from syncline_testing.control import Clock, on_both, pass_time

pytestmark = [pytest.mark.anyio, on_both]

LEASE_S = 10.0


@pytest.fixture
async def api(api: httpx.AsyncClient) -> httpx.AsyncClient:
    """A run of two replicas, and a sync service."""
    settings = {"timeouts": {"lease": LEASE_S}}
    await api.post("/v1/runs", json={"name": "r", "settings": settings})
    for name in "ab":
        await api.post("/v1/runs/r/replicas", json={"replica": name})
    await hello(api)
    return api


async def hello(api: httpx.AsyncClient) -> None:
    body = {"name": "s", "address": "127.0.0.1:1", "instance": "x"}
    assert (await api.put("/v1/sync-services/s", json=body)).is_success


async def beat(api: httpx.AsyncClient, replica: str) -> bool:
    url = f"/v1/runs/r/replicas/{replica}/heartbeat"
    return (await api.post(url, json={"incarnation": 1})).is_success


async def lost(api: httpx.AsyncClient) -> list[str]:
    events = (await api.get("/v1/events")).json()
    return [e["replica"] or "s" for e in events if e["kind"] in ("replica.lost", "sync.lost")]


async def test_who_hears_nobody_loses_nobody_and_who_is_heard_last_has_a_whole_lease(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    await pass_time(state, clock, 5 * LEASE_S)
    assert await beat(api, "a")
    await pass_time(state, clock, LEASE_S - 2.0)
    assert await lost(api) == []
    await hello(api)
    assert await beat(api, "a")
    await pass_time(state, clock, 3.0)
    assert await lost(api) == ["b"], "it is silent by itself"


async def test_a_run_of_one_replica_that_died_loses_it_in_time(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    await api.delete("/v1/runs/r/replicas/b?incarnation=1")
    for _ in range(2):
        await pass_time(state, clock, LEASE_S / 2 + 0.5)
        await hello(api)
    assert await lost(api) == ["a"]


async def test_whom_nobody_hears_for_long_is_lost(
    api: httpx.AsyncClient, state: State, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing, "UNHEARD_S_MAX", 60.0)
    await pass_time(state, clock, 59.0)
    assert await lost(api) == []
    await pass_time(state, clock, 20.0)
    assert sorted(await lost(api)) == ["a", "b", "s"]
