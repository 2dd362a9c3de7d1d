"""Sync services as the control plane knows them: alive, away, ended; what a run hears of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httpx
import pytest

from syncline_control.operations import services
from syncline_control.state import State
from syncline_proto.rest import WHY_CHARACTERS_MAX
from syncline_testing.control import Clock, client_of, on_both, pass_time

pytestmark = [pytest.mark.anyio, on_both]


async def test_of_a_run_are_events_of_services_too_from_its_creation_to_its_end(
    api: httpx.AsyncClient, clock: Clock
) -> None:
    async def sync_starts(instance: str) -> None:
        clock.now += 1
        body = {"name": "sync-0", "address": f"127.0.0.1:{instance}", "instance": instance}
        await api.put("/v1/sync-services/sync-0", json=body)
        clock.now += 1

    await sync_starts("1")
    await api.post("/v1/runs", json={"name": "short"})
    await sync_starts("2")
    await api.post("/v1/runs/short/stop")
    await sync_starts("3")
    told = [(one["kind"], one["run"]) for one in (await api.get("/v1/events?run=short")).json()]
    assert told == [("run.created", "short"), ("sync.started", None), ("run.stopped", "short")]
    everything = (await api.get("/v1/events?kind=sync.started")).json()
    assert len(everything) == 3


async def test_sync_services_have_leases_too(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    body = {"name": "sync-0", "address": "127.0.0.1:1", "instance": "one"}
    answer = await api.put("/v1/sync-services/sync-0", json=body)
    assert answer.json() == {"lease_s": services.LEASE_S}
    await api.put("/v1/sync-services/sync-0", json=body)
    await state.review_leases()
    for _ in range(int(services.LEASE_S)):
        clock.now += 1
        await state.review_leases()
    (seen,) = (await api.get("/v1/sync-services")).json()
    assert seen["alive"] is False
    await api.put("/v1/sync-services/sync-0", json=body)
    await api.put("/v1/sync-services/sync-0", json={**body, "instance": "two"})
    (seen,) = (await api.get("/v1/sync-services")).json()
    assert seen["alive"] is True
    kinds = [one["kind"] for one in (await api.get("/v1/events")).json()]
    assert [kind for kind in kinds if kind.startswith("sync.")] == [
        "sync.started",
        "sync.lost",
        "sync.back",
        "sync.started",
    ]


async def test_no_sync_service_is_lost_because_the_control_plane_stood_still(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    assert await says(api, "one") == 200
    await state.review_leases()
    clock.now += 10 * services.LEASE_S
    await state.review_leases()
    assert await where(api) == ("127.0.0.1:one", True)
    await pass_time(state, clock, services.LEASE_S)
    assert await where(api) == ("127.0.0.1:one", False), "from then on it is its own silence"


async def test_no_sync_service_is_lost_by_a_restart_of_the_control_plane(
    api: httpx.AsyncClient, state: State, clock: Clock, database: str
) -> None:
    assert await says(api, "one") == 200
    await state.close()
    clock.now += 10 * services.LEASE_S
    async with await State.open(database, clock=clock) as restarted, client_of(restarted) as again:
        await restarted.review_leases()
        assert await where(again) == ("127.0.0.1:one", True)
        await pass_time(restarted, clock, 3 * services.LEASE_S)  # the one before may be alive
        assert await where(again) == ("127.0.0.1:one", False)


async def test_a_sync_service_that_says_it_ends_is_away_at_once(api: httpx.AsyncClient) -> None:
    async def is_alive() -> bool:
        (seen,) = (await api.get("/v1/sync-services")).json()
        return seen["alive"]

    where = "/v1/sync-services/sync-0"
    for instance in ("one", "two"):
        body = {"name": "sync-0", "address": "127.0.0.1:1", "instance": instance}
        await api.put(where, json=body)
    for instance, alive in (("one", True), ("two", False), ("two", False)):
        gone = await api.delete(where, params={"instance": instance})
        assert gone.status_code == 204
        assert await is_alive() is alive
    (ended,) = (await api.get("/v1/events?kind=sync.ended")).json()
    assert ended["message"] == "Sync service sync-0 has ended."
    assert (await api.delete("/v1/sync-services/nobody?instance=x")).status_code == 204


async def test_a_sync_service_that_says_why_it_ends_is_quoted(api: httpx.AsyncClient) -> None:
    where = "/v1/sync-services/sync-0"
    body = {"name": "sync-0", "address": "127.0.0.1:1", "instance": "one"}
    await api.put(where, json=body)
    for odd in ("x" * (WHY_CHARACTERS_MAX + 1), "two\nlines", "\x1b[31m"):
        refused = await api.delete(where, params={"instance": "one", "why": odd})
        assert (refused.status_code, refused.json()["code"]) == (422, "INVALID_REQUEST")
    for why in ("The disk refuses: no space. Make room.", "it was cut in the"):
        await api.put(where, json=body)
        gone = await api.delete(where, params={"instance": "one", "why": why})
        assert gone.status_code == 204
    told = [one["message"] for one in (await api.get("/v1/events?kind=sync.ended")).json()]
    assert told == [
        "Sync service sync-0 has ended: The disk refuses: no space. Make room.",
        "Sync service sync-0 has ended: it was cut in the.",
    ]


async def test_why_it_ends_is_quoted_of_a_sync_service_that_hung_for_longer_than_its_lease(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    assert await says(api, "one") == 200
    await pass_time(state, clock, services.LEASE_S + 1)
    assert await where(api) == ("127.0.0.1:one", False)
    for _ in range(2):  # its call may come twice
        query = {"instance": "one", "why": "The disk hangs."}
        assert (await api.delete("/v1/sync-services/sync-0", params=query)).status_code == 204
    told = [one["message"] for one in (await api.get("/v1/events?kind=sync.ended")).json()]
    assert told == ["Sync service sync-0 has ended: The disk hangs."]


async def test_who_was_replaced_under_its_name_is_refused_while_the_newer_lives(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    for life in ("one", "two", "three"):
        assert await says(api, life) == 200
    for life in ("one", "two", "one"):  # each again and again, or late, from one that has ended
        refused = await hello(api, life)
        assert (refused.status_code, refused.json()["code"]) == (409, "RUN_CONFLICT")
        told = refused.json()["detail"]
        assert "127.0.0.1:three" in told and "stop the one" in told and "--name" in told
        assert await says(api, "three") == 200
        assert await where(api) == ("127.0.0.1:three", True)
    for _ in range(int(services.LEASE_S)):
        assert await says(api, "one") == 409, "which renews nobody's lease"
        clock.now += 1
    assert await says(api, "one") == 200, "the newer has not been heard for a lease"
    assert await says(api, "three") == 409
    await api.delete("/v1/sync-services/sync-0?instance=one")
    assert await says(api, "three") == 200, "the other has ended"
    assert await says(api, "one") == 409
    assert await where(api) == ("127.0.0.1:three", True)
    told = [one["message"] for one in (await api.get("/v1/events?kind=sync.back")).json()]
    again = [f"Sync service sync-0 answers again at 127.0.0.1:{x}." for x in ("one", "three")]
    assert told == again
    started = [one["message"] for one in (await api.get("/v1/events?kind=sync.started")).json()]
    assert started[:2] == [
        "Sync service sync-0 started at 127.0.0.1:one.",
        "Sync service sync-0 started again at 127.0.0.1:two; one at 127.0.0.1:one, if it lives "
        "on, is refused from now on.",
    ]


async def test_a_start_is_never_refused_for_the_one_before(api: httpx.AsyncClient) -> None:
    lives = [str(life) for life in range(services.REPLACED_MAX + 2)]
    assert await says(api, lives[0]) == 200
    for before, life in pairwise(lives):  # all within the same instant
        assert await says(api, life) == 200
        assert await says(api, before) == 409
    assert await where(api) == (f"127.0.0.1:{lives[-1]}", True)


async def hello(api: httpx.AsyncClient, life: str) -> httpx.Response:
    body = {"name": "sync-0", "address": f"127.0.0.1:{life}", "instance": life}
    return await api.put("/v1/sync-services/sync-0", json=body)


async def says(api: httpx.AsyncClient, life: str) -> int:
    return (await hello(api, life)).status_code


async def where(api: httpx.AsyncClient) -> tuple[str, bool]:
    (seen,) = (await api.get("/v1/sync-services")).json()
    return seen["address"], seen["alive"]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("sync-1", {}),
        ("sync-0", {"index": 1}),
        ("sync-0", {"shards": 0}),
        ("sync-0", {"shards": 1_001}),
        ("sync-0", {"votes": [{"run": "r", "phase": -1, "offered": True}]}),
        ("sync-0", {"address": "x" * 300}),
    ],
)
async def test_a_hello_that_does_not_fit_is_refused(
    api: httpx.AsyncClient, path: str, change: dict[str, Any]
) -> None:
    body = {"name": "sync-0", "address": "127.0.0.1:1", "instance": "one", **change}
    assert (await api.put(f"/v1/sync-services/{path}", json=body)).status_code == 422
    assert (await api.get("/v1/sync-services")).json() == []
