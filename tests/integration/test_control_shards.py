"""Sync services that share the runs: who may take which seat, and how a phase ends for all."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from syncline_control.operations import services
from syncline_control.state import State
from syncline_testing.control import Clock, on_both, pass_time

pytestmark = [pytest.mark.anyio, on_both]


@pytest.fixture
async def api(api: httpx.AsyncClient) -> httpx.AsyncClient:
    await api.post("/v1/runs", json={"name": "r", "settings": {"warmup_steps": 2}})
    return api


async def hello(
    api: httpx.AsyncClient,
    name: str,
    index: int,
    shards: int,
    *votes: dict[str, Any],
    life: str = "one",
    port: int = 1,
) -> httpx.Response:
    body = {"name": name, "address": f"127.0.0.1:{port}", "instance": life}
    more = {"index": index, "shards": shards, "votes": list(votes)}
    return await api.put(f"/v1/sync-services/{name}", json=body | more)


async def seats(api: httpx.AsyncClient) -> list[tuple[str, int, int]]:
    found = (await api.get("/v1/sync-services")).json()
    return [(one["name"], one["index"], one["shards"]) for one in found]


async def word(api: httpx.AsyncClient) -> tuple[int, int, bool]:
    told = (await api.get("/v1/membership")).json()
    (run,) = told["runs"]
    return told["version"], run["phase"], run["phase_ended"]


def vote(phase: int, offered: bool, run: str = "r") -> dict[str, Any]:
    return {"run": run, "phase": phase, "offered": offered}


async def test_services_that_share_agree_and_sit_apart(api: httpx.AsyncClient) -> None:
    assert (await hello(api, "sync-1", 1, 2)).status_code == 200
    assert (await hello(api, "sync-0", 0, 2)).status_code == 200
    assert (await hello(api, "sync-0", 0, 2)).status_code == 200
    for index, shards in [(1, 2), (2, 3), (0, 1)]:
        refused = await hello(api, "other", index, shards)
        assert refused.status_code == 409
        assert "sync-" in refused.json()["detail"] and "--index" in refused.json()["detail"]
    both = [("sync-0", 0, 2), ("sync-1", 1, 2)]
    assert await seats(api) == both
    registered = (await api.post("/v1/runs/r/replicas", json={"replica": "a"})).json()
    told = registered["sync_services"]
    assert [(one["name"], one["index"], one["shards"]) for one in told] == both


async def test_a_dead_service_stands_in_nobodys_way(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    await hello(api, "sync-0", 0, 2)
    await hello(api, "sync-1", 1, 2)
    await pass_time(state, clock, services.LEASE_S + 1)
    await hello(api, "sync-0", 0, 2)
    assert await seats(api) == [("sync-0", 0, 2), ("sync-1", 1, 2)], "it may come back"
    assert (await hello(api, "new-1", 1, 2)).status_code == 200
    assert await seats(api) == [("sync-0", 0, 2), ("new-1", 1, 2)]
    await pass_time(state, clock, services.LEASE_S + 1)
    assert (await hello(api, "sync-0", 0, 1)).status_code == 200
    assert await seats(api) == [("sync-0", 0, 1)]
    told = [one["message"] for one in (await api.get("/v1/events")).json()]
    assert [message for message in told if "is forgotten" in message] == [
        "Sync service sync-1, 1 of 2, was away and is forgotten: new-1 says 1 of 2.",
        "Sync service new-1, 1 of 2, was away and is forgotten: sync-0 says 0 of 1.",
    ]


async def test_a_phase_ends_when_every_service_has_its_offers(api: httpx.AsyncClient) -> None:
    before = await word(api)
    await hello(api, "sync-0", 0, 2, vote(0, True), vote(0, True, "unknown"))
    await hello(api, "sync-0", 0, 2, vote(0, True))
    assert await word(api) == before == (before[0], 0, False)
    await hello(api, "sync-1", 1, 2, vote(0, True))
    ended = await word(api)
    assert ended == (before[0] + 1, 0, True)
    await hello(api, "sync-1", 1, 2, vote(0, False))
    assert await word(api) == ended, "what has ended stays so"


async def test_a_phase_that_is_lost_starts_again_for_all(api: httpx.AsyncClient) -> None:
    await hello(api, "sync-0", 0, 2, vote(0, True))
    await hello(api, "sync-1", 1, 2, vote(0, False))
    assert (await word(api))[1:] == (1, False)
    await hello(api, "sync-1", 1, 2, vote(0, True))
    await hello(api, "sync-1", 1, 2, vote(1, True))
    assert (await word(api))[1:] == (1, False), "the other's vote was for the phase before"
    await hello(api, "sync-0", 0, 2, vote(1, True))
    assert (await word(api))[1:] == (1, True)
    kinds = [one["kind"] for one in (await api.get("/v1/events?run=r")).json()]
    assert [kind for kind in kinds if kind.startswith("phase.")] == ["phase.lost", "phase.ended"]


async def test_a_number_that_no_phase_has_is_passed_over(api: httpx.AsyncClient) -> None:
    for offered in (True, False):
        for number in (1 << 53, (1 << 63) - 1):
            assert (await hello(api, "sync-0", 0, 2, vote(number, offered))).status_code == 200
    assert (await word(api))[1:] == (0, False)


async def test_a_new_database_takes_over_the_phase_of_services_that_are_ahead_of_it(
    api: httpx.AsyncClient,
) -> None:
    before = await word(api)
    await hello(api, "sync-0", 0, 2, vote(0, True))
    await hello(api, "sync-1", 1, 2, vote(1, True))
    assert await word(api) == (before[0] + 1, 1, False), "who is behind hears of it"
    await hello(api, "sync-0", 0, 2, vote(1, True))
    assert (await word(api))[1:] == (1, True)
    kinds = [one["kind"] for one in (await api.get("/v1/events?run=r")).json()]
    assert [kind for kind in kinds if kind.startswith("phase.")] == ["phase.ended"]
