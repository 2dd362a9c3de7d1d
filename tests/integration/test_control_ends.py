"""A run whose token budget is committed while nobody could say so ends all the same."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from syncline_control.state import State
from syncline_testing.control import Clock, pass_time

pytestmark = pytest.mark.anyio


def round_to(revision: int, **more: Any) -> dict[str, Any]:
    """A report of one round of replica a, with 100 tokens more than the one before."""
    told = {
        "fragment": 0,
        "fragment_name": "block",
        "kind": "pseudo-gradient",
        "revision": revision,
        "committed_at": 1000.0 + revision,
        "seconds": 0.5,
        "committed_tokens": 100 * revision,
        "contributions": [{"replica": "a", "incarnation": 1, "verdict": "accepted", "weight": 1.0}],
    }
    return {"rounds": [{**told, **more}]}


async def test_a_run_whose_budget_is_committed_ends_when_nobody_is_left_to_say_so(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    async def state_of(name: str) -> str:
        return (await api.get(f"/v1/runs/{name}")).json()["state"]

    for name in ("heard-late", "lost", "short", "no-replica", "no-model"):
        await api.post("/v1/runs", json={"name": name, "settings": {"token_budget": 200}})
        if name != "no-replica":
            await api.post(f"/v1/runs/{name}/replicas", json={"replica": "a"})
    synchronous = round_to(0, kind="gradient", gradient_step=2, committed_tokens=200)
    for name, body in (
        ("lost", round_to(2)),
        ("short", round_to(1)),
        ("no-replica", round_to(2)),
        ("no-model", synchronous),
    ):
        await api.post(f"/v1/runs/{name}/reports", json=body)
        assert await state_of(name) == "running", "somebody may still take the last round"
    await pass_time(state, clock, 60)
    assert await state_of("lost") == "finished"
    ended = (await api.get("/v1/events", params={"kind": "run.finished"})).json()
    assert [event["message"] for event in ended] == [
        "Run lost is finished: its token budget of 200 is committed."
    ]
    assert (await api.get("/v1/runs/lost")).json()["ended_at"] is not None
    assert await state_of("short") == await state_of("no-replica") == "running"
    assert await state_of("no-model") == "running", "there is no revision 1 to end with"
    assert await state_of("heard-late") == "running"
    await api.post("/v1/runs/heard-late/reports", json=round_to(2))
    assert await state_of("heard-late") == "finished", (
        "its rounds were told after its replicas' end"
    )


async def test_a_replica_that_leaves_last_ends_a_run_that_is_done(api: httpx.AsyncClient) -> None:
    await api.post("/v1/runs", json={"name": "done", "settings": {"token_budget": 100}})
    for name in ("a", "b"):
        await api.post("/v1/runs/done/replicas", json={"replica": name})
    await api.post("/v1/runs/done/reports", json=round_to(1))
    for name, then in (("a", "running"), ("b", "finished")):
        await api.delete(f"/v1/runs/done/replicas/{name}?incarnation=1")
        assert (await api.get("/v1/runs/done")).json()["state"] == then
