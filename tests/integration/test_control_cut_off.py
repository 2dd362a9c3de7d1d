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


async def hello(api: httpx.AsyncClient, index: int = 0, shards: int = 1) -> None:
    name = f"s{index}" if shards > 1 else "s"
    where = {"address": "127.0.0.1:1", "index": index, "shards": shards}
    body = {"name": name, "instance": "x", **where}
    assert (await api.put(f"/v1/sync-services/{name}", json=body)).is_success


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


async def test_services_are_held_as_well_whose_leases_are_far_shorter_than_all_replicas(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    for name in "ab":
        await api.delete(f"/v1/runs/r/replicas/{name}?incarnation=1")
    settings = {"timeouts": {"profile": "wan"}}
    await api.post("/v1/runs", json={"name": "wide", "settings": settings})
    await api.post("/v1/runs/wide/replicas", json={"replica": "c"})
    await api.delete("/v1/sync-services/s?instance=x")
    for index in range(2):
        await hello(api, index, shards=2)
    await pass_time(state, clock, 28.0)
    assert await lost(api) == [], "no replica is even overdue for the first 30 s"
    for _ in range(2):
        await hello(api, 0, shards=2)
        await pass_time(state, clock, 8.0)
    assert await lost(api) == ["s"], "one is silent by itself"


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
