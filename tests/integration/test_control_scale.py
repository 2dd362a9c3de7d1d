"""How many replicas a run should have, and how many it may."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from syncline_control.state import State
from syncline_testing.control import Clock, on_both, pass_time

pytestmark = [pytest.mark.anyio, on_both]


@pytest.fixture
async def api(api: httpx.AsyncClient) -> httpx.AsyncClient:
    """A run of one to three replicas."""
    settings = {"min_replicas": 1, "max_replicas": 3}
    await api.post("/v1/runs", json={"name": "r", "settings": settings})
    return api


async def scaled(api: httpx.AsyncClient, replicas: Any) -> httpx.Response:
    return await api.put("/v1/runs/r/scale", json={"replicas": replicas})


async def test_what_is_wanted_is_kept_and_told(api: httpx.AsyncClient) -> None:
    assert (await api.get("/v1/runs/r")).json()["replicas_wanted"] is None
    assert (await scaled(api, 2)).json()["replicas_wanted"] == 2
    assert (await scaled(api, 2)).status_code == 200
    assert (await api.get("/v1/runs/r")).json()["replicas_wanted"] == 2
    assert 'syncline_replicas{run="r",state="wanted"} 2.0' in (await api.get("/metrics")).text
    assert (await scaled(api, 1)).json()["replicas_wanted"] == 1
    assert (await scaled(api, None)).json()["replicas_wanted"] is None
    events = (await api.get("/v1/events?run=r")).json()
    told = [event["message"] for event in events if event["kind"] == "run.scaled"]
    assert told == [
        "r should have 2 replicas.",
        "r should have 1 replica.",
        "r has as many replicas as come.",
    ]


@pytest.mark.parametrize(
    ("replicas", "why"), [(4, "4 is above max_replicas 3"), (0, "replicas"), ("many", "replicas")]
)
async def test_what_the_run_may_not_have_is_refused(
    api: httpx.AsyncClient, replicas: Any, why: str
) -> None:
    refused = await scaled(api, replicas)
    assert refused.status_code in (400, 422) and why in refused.text
    assert (await api.get("/v1/runs/r")).json()["replicas_wanted"] is None


async def test_fewer_than_the_minimum_are_refused(api: httpx.AsyncClient) -> None:
    await api.post("/v1/runs", json={"name": "two", "settings": {"min_replicas": 2}})
    refused = await api.put("/v1/runs/two/scale", json={"replicas": 1})
    assert refused.status_code == 422
    assert refused.json()["detail"] == (
        "replicas: 1 is below min_replicas 2 of run two; to train nothing for a while pause the "
        "run."
    )
    assert (await api.put("/v1/runs/two/scale", json={"replicas": 2})).is_success


async def test_a_run_that_has_ended_is_not_scaled(api: httpx.AsyncClient) -> None:
    await api.post("/v1/runs/r/stop")
    assert (await scaled(api, 2)).json()["code"] == "RUN_CONFLICT"


async def test_who_comes_to_a_full_run_waits_for_a_place(api: httpx.AsyncClient) -> None:
    async def comes(name: str) -> httpx.Response:
        return await api.post("/v1/runs/r/replicas", json={"replica": name})

    for name in "abc":
        assert (await comes(name)).is_success
    full = await comes("d")
    assert full.json()["code"] == "RUN_FULL" and "max_replicas" in full.json()["detail"]
    assert (await comes("a")).is_success, "a new life of one that is here takes no place"
    await api.delete("/v1/runs/r/replicas/b?incarnation=1")
    assert (await comes("d")).is_success


async def test_a_run_below_its_minimum_waits_and_says_so_once(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    settings = {"min_replicas": 2, "timeouts": {"lease": 4.0}}
    await api.post("/v1/runs", json={"name": "two", "settings": settings})

    async def waits() -> str | None:
        return (await api.get("/v1/runs/two")).json()["waits_for"]

    async def comes(name: str) -> None:
        assert (await api.post("/v1/runs/two/replicas", json={"replica": name})).is_success

    await comes("a")
    assert await waits() == "replicas"
    await comes("b")
    assert await waits() is None
    await comes("b")  # again: no more of them
    await comes("c")
    await api.delete("/v1/runs/two/replicas/c?incarnation=1")
    await api.post("/v1/runs/two/replicas/b/kick")
    assert await waits() == "replicas"
    await pass_time(state, clock, 5.0)  # a is lost, too
    await comes("d")
    await comes("e")
    assert await waits() is None
    await pass_time(state, clock, 5.0)  # both are lost, at once
    assert await waits() == "replicas"
    events = (await api.get("/v1/events?run=two")).json()
    told = [(one["kind"], one["message"]) for one in events if "min_replicas" in one["message"]]
    on = ("run.goes_on", "two has its min_replicas 2: rounds close, and it goes on.")
    short = "of its min_replicas 2, so no round closes: who has pushed waits until"
    below = ("run.waits", f"two has 1 {short} 1 more joins.")
    gone = ("run.waits", f"two has 0 {short} 2 more join.")
    assert told == [on, below, on, gone]
