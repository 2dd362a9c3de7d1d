"""What a database can neither keep nor reckon with is in nobody's way, or is refused."""

from __future__ import annotations

import httpx
import pytest

from syncline_testing.control import on_both, with_replicas

pytestmark = [pytest.mark.anyio, on_both]


@pytest.fixture
async def api(api: httpx.AsyncClient) -> httpx.AsyncClient:
    """A run of replicas a and b."""
    return await with_replicas(api, "a", "b")


async def test_a_loss_beyond_all_reason_is_in_nobodys_way(api: httpx.AsyncClient) -> None:
    for name, loss in (("x", -1.7e308), ("y", 1e200), ("z", 2.0)):
        joined = await api.post("/v1/runs/r/replicas", json={"replica": name})
        assert joined.is_success, joined.text
        body = {"incarnation": 1, "progress": {"loss": loss}}
        beat = await api.post(f"/v1/runs/r/replicas/{name}/heartbeat", json=body)
        assert beat.is_success, beat.text
    for path in ("/v1/runs/r", "/v1/runs", "/metrics"):
        seen = await api.get(path)
        assert seen.is_success, seen.text
    assert (await api.get("/v1/runs/r")).json()["loss"] == 2.0
    listed = (await api.get("/v1/runs/r/replicas")).json()
    shown = {one["replica"]: one["progress"]["loss"] for one in listed}
    assert [shown[name] for name in ("x", "y", "z")] == [-1.7e308, 1e200, 2.0]


async def test_a_name_that_no_database_keeps_is_refused(api: httpx.AsyncClient) -> None:
    for path in ("/v1/events", "/v1/events/stream"):
        refused = await api.get(path, params={"run": "a\0b"})
        assert refused.status_code == 422 and "run" in refused.json()["detail"]
    event = {"kind": "x.y", "message": "why", "replica": "a\0b"}
    told = await api.post("/v1/runs/r/reports", json={"events": [event]})
    assert told.status_code == 422 and "replica" in told.json()["detail"]
