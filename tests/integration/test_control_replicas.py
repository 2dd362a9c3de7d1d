"""Replicas over REST: leases, incarnations, membership; time is moved by hand."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from syncline_control.core import leases
from syncline_control.core.leases import Lease
from syncline_control.operations import replicas
from syncline_control.state import State
from syncline_proto.rest import WHY_CHARACTERS_MAX, ReplicaRegister
from syncline_testing.control import Clock, client_of, on_both, pass_time

pytestmark = [pytest.mark.anyio, on_both]

LEASE_S = 4.0


@pytest.fixture
async def api(api: httpx.AsyncClient) -> httpx.AsyncClient:
    settings = {"timeouts": {"lease": LEASE_S}}
    await api.post("/v1/runs", json={"name": "r", "settings": settings})
    return api


async def register(api: httpx.AsyncClient, replica: str = "a", **more: Any) -> dict[str, Any]:
    answer = await api.post("/v1/runs/r/replicas", json={"replica": replica, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def beat(
    api: httpx.AsyncClient, replica: str = "a", incarnation: int = 1, **more: Any
) -> httpx.Response:
    body = {"incarnation": incarnation, **more}
    return await api.post(f"/v1/runs/r/replicas/{replica}/heartbeat", json=body)


async def view(api: httpx.AsyncClient, replica: str = "a") -> dict[str, Any]:
    listed = (await api.get("/v1/runs/r/replicas")).json()
    return next(one for one in listed if one["replica"] == replica)


async def members(api: httpx.AsyncClient) -> list[tuple[str, int]]:
    runs = (await api.get("/v1/membership")).json()["runs"]
    return [(one["replica"], one["incarnation"]) for run in runs for one in run["members"]]


async def kinds(api: httpx.AsyncClient) -> list[str]:
    return [event["kind"] for event in (await api.get("/v1/events")).json()]


async def test_registering_gives_a_lease_and_what_there_is_to_know(api: httpx.AsyncClient) -> None:
    await api.put(
        "/v1/sync-services/sync-0",
        json={"name": "sync-0", "address": "127.0.0.1:5", "instance": "x"},
    )
    first = await register(api, "a", ranks=2, host="here", pid=7)
    second = await register(api, "b")
    assert (first["incarnation"], first["ordinal"], second["ordinal"]) == (1, 0, 1)
    assert (first["lease_s"], first["heartbeat_s"]) == (LEASE_S, LEASE_S / 4)
    assert first["run"]["replicas_alive"] == 1
    assert [one["address"] for one in first["sync_services"]] == ["127.0.0.1:5"]
    seen = await view(api)
    assert (seen["state"], seen["ranks"], seen["host"], seen["pid"]) == ("alive", 2, "here", 7)
    assert seen["lease_left_s"] == LEASE_S
    assert seen["taking_part"] is False


async def test_a_new_life_fences_the_older_one_and_keeps_its_ordinal(
    api: httpx.AsyncClient,
) -> None:
    await register(api, "a")
    await register(api, "b")
    again = await register(api, "a")
    assert (again["incarnation"], again["ordinal"]) == (2, 0)
    refused = await beat(api, "a", 1)
    assert (refused.status_code, refused.json()["code"]) == (409, "LEASE_LOST")
    assert (await beat(api, "a", 2)).status_code == 200
    assert await members(api) == [("a", 2), ("b", 1)]
    assert "replica.fenced" in await kinds(api)


async def test_who_has_another_model_does_not_fence_a_life_that_has_joined(
    api: httpx.AsyncClient,
) -> None:
    async def code(fingerprint: str) -> str | None:
        body = {"replica": "a", "fingerprint": fingerprint}
        return (await api.post("/v1/runs/r/replicas", json=body)).json().get("code")

    assert await code("one") is None
    assert await code("other") is None, "whoever has not joined yet may be the one to be refused"
    assert (await beat(api, "a", 2, progress={"phase": "waiting"})).status_code == 200
    assert await code("one") == "LAYOUT_MISMATCH"
    assert (await beat(api, "a", 2)).status_code == 200
    assert await members(api) == [("a", 2)]
    assert (await beat(api, "a", 2, progress={"phase": "training"})).status_code == 200
    assert [await code("other"), await code("")] == [None, None]
    assert (await beat(api, "a", 4, progress={"phase": "training"})).status_code == 200
    await api.delete("/v1/runs/r/replicas/a", params={"incarnation": 4})
    assert await code("one") is None, "it fences nobody; the sync service says the difference"


async def test_heartbeats_keep_a_lease_and_silence_loses_it(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    await register(api, "a")
    await register(api, "b")
    for _ in range(4):
        await pass_time(state, clock, LEASE_S / 2)
        assert (await beat(api, "a")).status_code == 200
    assert [(await view(api, one))["state"] for one in ("a", "b")] == ["alive", "lost"]
    assert (await beat(api, "b")).json()["code"] == "LEASE_LOST"
    assert await members(api) == [("a", 1)]
    assert (await kinds(api)).count("replica.lost") == 1
    assert (await register(api, "b"))["incarnation"] == 2


async def test_a_lease_is_lost_at_its_end_even_before_anybody_looks(
    api: httpx.AsyncClient, clock: Clock
) -> None:
    await register(api)
    clock.now += LEASE_S
    assert (await beat(api)).json()["code"] == "LEASE_LOST"


async def test_nobody_loses_a_lease_because_the_control_plane_stood_still(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    await register(api, "a")
    await register(api, "b")
    await state.review_leases()
    clock.now += 100
    assert (await beat(api, "a")).status_code == 200
    await state.review_leases()
    assert await members(api) == [("a", 1), ("b", 1)]
    await pass_time(state, clock, LEASE_S)
    assert await members(api) == []


async def test_nobody_loses_a_lease_or_a_number_by_a_restart(
    api: httpx.AsyncClient, state: State, clock: Clock, database: str
) -> None:
    await register(api, "a")
    await register(api, "a")
    await register(api, "gone")
    await api.delete("/v1/runs/r/replicas/gone", params={"incarnation": 1})
    before = (await api.get("/v1/membership")).json()
    await state.close()
    clock.now += 3600
    async with await State.open(database, clock=clock) as restarted, client_of(restarted) as again:
        after = (await again.get("/v1/membership")).json()
        assert after["runs"] == before["runs"] and after["instance"] != before["instance"]
        assert after["version"] > before["version"], "however old the database is"
        await restarted.review_leases()
        assert (await beat(again, "a", 2)).status_code == 200
        assert (await view(again, "gone"))["state"] == "left"
        assert (await register(again, "gone"))["incarnation"] == 2
        assert (await register(again, "a"))["incarnation"] == 3
        assert (await register(again, "new"))["ordinal"] == 2


async def test_a_draining_replica_is_told_so_and_stays_a_member(api: httpx.AsyncClient) -> None:
    await register(api)
    assert (await beat(api)).json()["drain"] is False
    drained = await api.post("/v1/runs/r/replicas/a/drain")
    assert drained.json()["state"] == "draining"
    assert (await beat(api)).json()["drain"] is True
    assert await members(api) == [("a", 1)]
    assert (await api.delete("/v1/runs/r/replicas/a?incarnation=1")).status_code == 204
    assert await members(api) == []
    again = await api.post("/v1/runs/r/replicas/a/drain")
    assert (again.status_code, again.json()["code"]) == (409, "RUN_CONFLICT")
    assert "there is nothing to drain" in again.json()["detail"]


async def test_a_kicked_replica_is_out_at_once_and_hears_the_same_from_every_route(
    api: httpx.AsyncClient,
) -> None:
    await register(api)
    for _ in range(2):
        assert (await api.post("/v1/runs/r/replicas/a/kick")).json()["state"] == "kicked"
    assert await members(api) == []
    assert (await kinds(api)).count("replica.kicked") == 1
    answers = [
        await beat(api),
        await api.post("/v1/runs/r/replicas", json={"replica": "a"}),
        await api.post("/v1/runs/r/replicas/a/drain"),
        await api.delete("/v1/runs/r/replicas/a?incarnation=1"),
    ]
    assert {(one.status_code, one.json()["code"]) for one in answers} == {(409, "LEASE_LOST")}
    (says,) = {one.json()["detail"] for one in answers}
    assert "operator" in says
    assert (await register(api, "b"))["ordinal"] == 1


async def test_a_run_says_since_when_nobody_is_there(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    async def idle_since() -> float | None:
        return (await api.get("/v1/runs/r")).json()["idle_since"]

    start = clock.now
    assert await idle_since() is None
    for name in ("gone", "kicked", "lost"):
        await register(api, name)
    clock.now += 1
    await api.delete("/v1/runs/r/replicas/gone?incarnation=1")
    clock.now += 1
    await api.post("/v1/runs/r/replicas/kicked/kick")
    assert await idle_since() is None
    await pass_time(state, clock, LEASE_S)
    assert await idle_since() == start + LEASE_S
    await register(api, "gone")
    assert await idle_since() is None
    clock.now += 1
    await api.delete("/v1/runs/r/replicas/gone?incarnation=2")
    assert await idle_since() == clock.now
    await api.post("/v1/runs/r/stop")
    assert await idle_since() is None


async def test_leaving_is_idempotent_and_an_older_life_cannot_end_a_newer_one(
    api: httpx.AsyncClient,
) -> None:
    await register(api)
    await register(api)
    for incarnation, left in [(1, []), (2, []), (2, [])]:
        answer = await api.delete(f"/v1/runs/r/replicas/a?incarnation={incarnation}")
        assert answer.status_code == 204
        assert await members(api) == ([("a", 2)] if incarnation == 1 else left)
    assert (await kinds(api)).count("replica.left") == 1


async def test_who_says_why_it_leaves_is_quoted(api: httpx.AsyncClient) -> None:
    for name, words in (("a", {"why": "Another model."}), ("b", {})):
        await register(api, name)
        gone = await api.delete(f"/v1/runs/r/replicas/{name}", params={"incarnation": 1, **words})
        assert gone.status_code == 204
    events = (await api.get("/v1/events")).json()
    said = {event["message"] for event in events if event["kind"] == "replica.left"}
    assert said == {"a left: Another model.", "b left."}
    await register(api)
    for odd in ("x" * (WHY_CHARACTERS_MAX + 1), "two\nlines", "\x1b[31m"):
        words = {"incarnation": 2, "why": odd}
        assert (await api.delete("/v1/runs/r/replicas/a", params=words)).status_code == 422


async def test_an_ended_run_takes_nobody_in_and_tells_those_who_are(
    api: httpx.AsyncClient,
) -> None:
    await register(api)
    await api.post("/v1/runs/r/stop")
    refused = await api.post("/v1/runs/r/replicas", json={"replica": "b"})
    assert (refused.status_code, refused.json()["code"]) == (409, "RUN_CONFLICT")
    assert (await beat(api)).json()["run_state"] == "stopped"
    assert (await api.get("/v1/membership")).json()["runs"] == []
    (one,) = (await api.get("/v1/runs/r/membership")).json()["runs"]
    assert (one["state"], [m["replica"] for m in one["members"]]) == ("stopped", ["a"])


async def test_heartbeats_carry_progress_and_settings(api: httpx.AsyncClient) -> None:
    await register(api)
    await register(api, "b")
    await api.patch("/v1/runs/r/settings", json={"settings": {"sync_every": 3}})
    progress = {"phase": "training", "inner_step": 5, "loss": 2.5, "tokens_per_second": 10.0}
    answer = (await beat(api, progress=progress)).json()
    assert (answer["settings"]["sync_every"], answer["settings_version"]) == (3, 2)
    assert answer["replicas_alive"] == 2
    await beat(api, "b", progress={"loss": 3.5})
    assert (await view(api))["progress"]["inner_step"] == 5
    assert (await api.get("/v1/runs/r")).json()["loss"] == 3.0


@pytest.mark.parametrize(
    "body",
    [
        {"replica": "Upper"},
        {"replica": "a", "ranks": 0},
        {"replica": "a", "pid": -1},
        {"replica": "a", "host": "x" * 300},
        {"replica": "a", "host": "line\nbreak"},
    ],
)
async def test_a_registration_that_does_not_fit_changes_nothing(
    api: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    answer = await api.post("/v1/runs/r/replicas", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_REQUEST")
    assert (await api.get("/v1/runs/r/replicas")).json() == []


async def test_who_is_unknown_is_told_so(api: httpx.AsyncClient) -> None:
    assert (await beat(api, "nobody")).json()["code"] == "REPLICA_UNKNOWN"
    assert (await api.get("/v1/runs/nothing/replicas")).json()["code"] == "RUN_UNKNOWN"
    assert (await api.get("/v1/runs/nothing/membership")).json()["code"] == "RUN_UNKNOWN"
    for path in ("/v1/events", "/v1/events/stream"):
        answer = await api.get(path, params={"run": "nothing"}, headers={"Last-Event-ID": "0"})
        assert (answer.status_code, answer.json()["code"]) == (404, "RUN_UNKNOWN")


async def test_a_run_has_only_so_many_replicas(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "REPLICAS_PER_RUN_MAX", 1)
    await register(api)
    refused = await api.post("/v1/runs/r/replicas", json={"replica": "b"})
    assert (refused.status_code, refused.json()["code"]) == (429, "OVERLOADED")
    assert (await register(api))["incarnation"] == 2


@pytest.mark.parametrize("where", ["/v1/membership", "/v1/runs/r/membership"])
async def test_a_long_poll_wakes_when_the_membership_changes(
    api: httpx.AsyncClient, where: str
) -> None:
    known = (await api.get(where)).json()["version"]
    asked = {"after": known, "wait_s": 60}
    poll = asyncio.create_task(api.get(where, params=asked))
    await asyncio.sleep(0.05)
    assert not poll.done()
    await register(api)
    answer = (await poll).json()
    assert answer["version"] > known
    assert [one["replica"] for one in answer["runs"][0]["members"]] == ["a"]


async def test_a_long_poll_without_news_answers_the_same_again(api: httpx.AsyncClient) -> None:
    known = (await api.get("/v1/membership")).json()
    asked = {"after": known["version"], "wait_s": 0.05}
    assert (await api.get("/v1/membership", params=asked)).json() == known
    await register(api)
    await beat(api)
    after = (await api.get("/v1/membership")).json()["version"]
    await beat(api)
    assert (await api.get("/v1/membership")).json()["version"] == after


async def test_a_change_right_behind_the_look_is_not_missed(
    api: httpx.AsyncClient, state: State
) -> None:
    known = (await api.get("/v1/membership")).json()["version"]
    polling = asyncio.create_task(state.membership(None, known, 5))
    asking = asyncio.create_task(state.do(replicas.register, "r", ReplicaRegister(replica="a")))
    await asyncio.sleep(0)
    time.sleep(0.2)  # the loop stands still until the database has answered both
    assert (await polling).version > known
    await asking


async def test_many_polls_wake_at_once_and_all_end_with_the_state(
    api: httpx.AsyncClient, state: State
) -> None:
    known = (await api.get("/v1/membership")).json()["version"]
    asked = {"after": known, "wait_s": 60}
    polls = [asyncio.create_task(api.get("/v1/membership", params=asked)) for _ in range(50)]
    await asyncio.sleep(0.05)
    state.end_waits()
    answers = await asyncio.gather(*polls)
    assert {answer.json()["version"] for answer in answers} == {known}


async def test_a_caller_who_hangs_up_does_not_undo_what_he_asked(
    api: httpx.AsyncClient, state: State
) -> None:
    known = (await api.get("/v1/membership")).json()["version"]
    polling = asyncio.create_task(state.membership(None, known, 30))
    body = ReplicaRegister(replica="a")
    asking = asyncio.create_task(state.do(replicas.register, "r", body))
    await asyncio.sleep(0)  # far enough to have asked, not to have been answered
    asking.cancel()
    assert (await polling).version > known
    assert asking.cancelled()
    assert await members(api) == [("a", 1)]


async def test_a_review_that_is_a_little_late_looks_only_at_what_can_change(
    api: httpx.AsyncClient, state: State, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await register(api, name)
    looked_at: list[float] = []
    review = leases.review

    def noted(lease: Lease, now: float, late_s: float = 0.0) -> Lease:
        looked_at.append(late_s)
        return review(lease, now, late_s)

    every_s = await state.review_leases()
    monkeypatch.setattr(leases, "review", noted)
    clock.now += every_s + 0.01
    every_s = await state.review_leases()
    assert looked_at == []
    clock.now += every_s + 0.6 * LEASE_S
    await state.review_leases()
    assert looked_at == [pytest.approx(0.6 * LEASE_S)] * 2
