"""Runs over REST: made once, changed live, ended for good; every error is a problem."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from syncline_control.app import create_app
from syncline_control.intake import BODY_BYTES_MAX
from syncline_control.operations import runs
from syncline_control.state import State
from syncline_proto import leased, reports, rest
from syncline_proto.settings import LIVE, RunSettings
from syncline_testing.control import Clock, on_both

pytestmark = [pytest.mark.anyio, on_both]


def problem_of(answer: httpx.Response, status: int, code: str) -> str:
    """Check that the answer is a problem of this kind and return its sentence."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code)
    assert body["title"] and body["detail"].rstrip().endswith(".")
    return body["detail"]


async def test_creating_a_run_twice_creates_it_once(api: httpx.AsyncClient) -> None:
    body = {"name": "r", "settings": {"strategy": "diloco"}, "job": {"model": "tiny"}}
    first = await api.post("/v1/runs", json=body)
    again = await api.post("/v1/runs", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json() == (await api.get("/v1/runs/r")).json()
    assert first.json()["settings"]["penalty"]["enabled"] is False
    assert first.json()["job"] == {"model": "tiny"}
    assert [run["name"] for run in (await api.get("/v1/runs")).json()] == ["r"]


async def test_a_run_that_began_from_a_checkpoint_says_so_and_is_joined_as_any(
    api: httpx.AsyncClient,
) -> None:
    origin = {"checkpoint": "s3://bucket/first-r3", "id": "0" * 32, "revision": 3}
    first = await api.post("/v1/runs", json={"name": "r", "origin": origin})
    again = await api.post("/v1/runs", json={"name": "r", "origin": origin})
    joined = await api.post("/v1/runs", json={"name": "r"})
    assert [one.status_code for one in (first, again, joined)] == [201, 200, 200]
    assert all(one.json()["origin"] == origin for one in (first, again, joined))
    (row,) = (await api.get("/v1/membership")).json()["runs"]
    assert row["origin"] == origin, "sync services begin it from there"
    other = {"name": "r", "origin": {**origin, "id": "1" * 32}}
    assert "another name" in problem_of(await api.post("/v1/runs", json=other), 409, "RUN_CONFLICT")
    await api.post("/v1/runs", json={"name": "plain"})
    late = {"name": "plain", "origin": origin}
    assert problem_of(await api.post("/v1/runs", json=late), 409, "RUN_CONFLICT")
    odd = {"name": "odd", "origin": {**origin, "colour": "red"}}
    assert "colour" in problem_of(await api.post("/v1/runs", json=odd), 422, "INVALID_REQUEST")


async def test_other_settings_are_a_conflict_that_names_all_of_them(
    api: httpx.AsyncClient,
) -> None:
    await api.post("/v1/runs", json={"name": "r"})
    other = {"name": "r", "settings": {"outer": {"lr": 0.5}, "sync_every": 3}}
    says = problem_of(await api.post("/v1/runs", json=other), 409, "RUN_CONFLICT")
    assert "outer.lr: the run has 0.7, here 0.5; sync_every: the run has 64, here 3" in says


async def test_a_live_change_bumps_the_version_and_is_an_event(api: httpx.AsyncClient) -> None:
    await api.post("/v1/runs", json={"name": "r"})
    patch = {"settings": {"sync_every": 32, "codec": {"up": "fp32"}}}
    view = (await api.patch("/v1/runs/r/settings", json=patch)).json()
    assert view["settings_version"] == 2
    assert (view["settings"]["sync_every"], view["settings"]["codec"]["up"]) == (32, "fp32")
    assert (await api.patch("/v1/runs/r/settings", json=patch)).json()["settings_version"] == 2
    (event,) = [e for e in (await api.get("/v1/events")).json() if e["kind"] == "settings.changed"]
    assert "sync_every: 64 -> 32" in event["message"]


@pytest.mark.parametrize("key", ["token_budget", "timeouts", "colour"])
async def test_a_setting_that_is_not_live_is_named(api: httpx.AsyncClient, key: str) -> None:
    await api.post("/v1/runs", json={"name": "r"})
    answer = await api.patch("/v1/runs/r/settings", json={"settings": {key: 1}})
    assert f"settings.{key}" in problem_of(answer, 422, "INVALID_REQUEST")


async def test_a_run_lives_by_the_table(api: httpx.AsyncClient) -> None:
    await api.post("/v1/runs", json={"name": "r"})
    for act, state in [
        ("pause", "paused"),
        ("pause", "paused"),
        ("resume", "running"),
        ("finish", "finished"),
        ("finish", "finished"),
    ]:
        assert (await api.post(f"/v1/runs/r/{act}")).json()["state"] == state
    for act in ("pause", "resume", "stop"):
        problem_of(await api.post(f"/v1/runs/r/{act}"), 409, "RUN_CONFLICT")
    answer = await api.patch("/v1/runs/r/settings", json={"settings": {"sync_every": 2}})
    problem_of(answer, 409, "RUN_CONFLICT")
    kinds = [event["kind"] for event in (await api.get("/v1/events?run=r")).json()]
    assert kinds == ["run.created", "run.paused", "run.resumed", "run.finished"]


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/v1/runs", {"name": "No Spaces"}, "name"),
        ("POST", "/v1/runs", {"name": "r", "colour": 1}, "colour"),
        ("POST", "/v1/runs", {"name": "r", "settings": {"sync_every": 0}}, "settings.sync_every"),
        ("POST", "/v1/runs", {"name": "r", "settings": {"timeouts": {"lease": 1000}}}, "lease"),
        ("POST", "/v1/runs", {"name": "r", "job": {"text": "x" * (1 << 19)}}, "job"),
        ("GET", "/v1/runs/UPPER", None, "run"),
        ("GET", "/v1/runs?limit=0", None, "limit"),
        ("GET", "/v1/membership?wait_s=61", None, "wait_s"),
    ],
)
async def test_an_invalid_request_names_its_field(
    api: httpx.AsyncClient, method: str, path: str, body: Any, field: str
) -> None:
    answer = await api.request(method, path, json=body)
    assert field in problem_of(answer, 422, "INVALID_REQUEST")


async def test_what_is_not_there_is_a_problem_too(api: httpx.AsyncClient) -> None:
    assert "no run nobody" in problem_of(await api.get("/v1/runs/nobody"), 404, "RUN_UNKNOWN")
    problem_of(await api.get("/v1/nothing"), 404, "INVALID_REQUEST")
    problem_of(await api.delete("/v1/runs"), 405, "INVALID_REQUEST")
    content = {"content-type": "application/json"}
    answer = await api.post("/v1/runs", content=b"{", headers=content)
    assert "not valid JSON" in problem_of(answer, 422, "INVALID_REQUEST")


async def test_a_body_over_the_bound_is_refused_announced_or_not(api: httpx.AsyncClient) -> None:
    sent = 0

    async def trickle() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(3 * BODY_BYTES_MAX >> 20):
            sent += 1 << 20
            yield b" " * (1 << 20)

    for content in (b" " * (BODY_BYTES_MAX + 1), trickle()):
        answer = await api.post("/v1/runs", content=content)
        problem_of(answer, 413, "INVALID_REQUEST")
    assert sent <= BODY_BYTES_MAX + (1 << 20)


async def test_there_are_only_so_many_runs(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RUNS_MAX", 2)
    for name in ("a", "b"):
        assert (await api.post("/v1/runs", json={"name": name})).status_code == 201
    problem_of(await api.post("/v1/runs", json={"name": "c"}), 429, "OVERLOADED")
    assert (await api.post("/v1/runs", json={"name": "a"})).status_code == 200


async def test_a_token_guards_v1_and_nothing_else(state: State) -> None:
    transport = httpx.ASGITransport(create_app(state, token="s3cret"))
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as api:
        missing = await api.get("/v1/runs")
        assert "wants a token" in problem_of(missing, 401, "FORBIDDEN")
        assert missing.headers["www-authenticate"] == "Bearer"
        for wrong in ("Bearer no", "Basic s3cret", "Bearer", "Bearer s3cret2"):
            headers = [("Authorization", wrong)]
            problem_of(await api.get("/v1/runs", headers=headers), 401, "FORBIDDEN")
        right = {"Authorization": "Bearer s3cret"}
        assert (await api.get("/v1/runs", headers=right)).status_code == 200
        for path in ("/", "/healthz", "/readyz", "/metrics", "/page/page.js"):
            assert (await api.get(path)).status_code == 200


async def test_a_page_of_another_site_may_not_act(api: httpx.AsyncClient) -> None:
    await api.post("/v1/runs", json={"name": "r"})
    for origin in ("http://evil.example", "http://[", "null", ""):
        foreign = {"Origin": origin}
        problem_of(await api.post("/v1/runs/r/stop", headers=foreign), 403, "FORBIDDEN")
    own = {"Origin": "http://control"}
    assert (await api.post("/v1/runs/r/stop", headers=own)).status_code == 200


async def test_the_page_asks_nobody_else(api: httpx.AsyncClient) -> None:
    page = await api.get("/")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "http://" not in page.text and "https://" not in page.text
    for path in ("page.js", "page.css", "uplot/uPlot.iife.min.js", "uplot/LICENSE"):
        assert (await api.get(f"/page/{path}")).status_code == 200


async def test_openapi_shows_examples_that_work_and_documents_problems(
    api: httpx.AsyncClient, clock: Clock
) -> None:
    clock.now = 1_767_225_700.0  # soon after what the examples tell of
    document = (await api.get("/openapi.json")).json()
    said = document["paths"]["/v1/runs/{run}/settings"]["patch"]["description"]
    assert {name for name in RunSettings.model_fields if re.search(rf"\b{name}\b", said)} == LIVE
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    listed = document["paths"]["/v1/runs"]["get"]["responses"]["200"]["content"]
    assert "job" not in listed["application/json"]["example"][0]
    seen, answers = 0, set[str]()
    for path, acts in document["paths"].items():
        for act, operation in acts.items():
            content = operation["responses"]["default"]["content"]["application/problem+json"]
            assert content["schema"] == problem["schema"], (path, act)
            for answer in operation["responses"].values():
                for content in answer.get("content", {}).values():
                    schema = content.get("schema", {})
                    of = schema.get("items", schema).get("$ref", "").rpartition("/")[2]
                    if of != "":
                        shown = content["example"][0] if "items" in schema else content["example"]
                        rooms = (rest, reports, leased)
                        kind = next(getattr(r, of) for r in rooms if hasattr(r, of))
                        assert kind.model_validate(shown, extra="forbid")
                        answers.add(of)
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for example in body.get("examples", {}).values():
                await api.post("/v1/runs", json={"name": "my-run"})
                await api.post("/v1/runs/my-run/replicas", json={"replica": "replica-0"})
                at = path.format(run="my-run", replica="replica-0", name="sync-0")
                answer = await api.request(act, at, json=example["value"])
                # The example of a new run meets the run that the others need.
                assert answer.is_success or answer.status_code == 409, (at, answer.text)
                seen += 1
    assert seen >= 7
    assert {"RunView", "ReplicaView", "Membership", "RoundReport", "Problem"} <= answers


async def test_the_loop_goes_on_while_the_database_works(state: State) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    spinning = asyncio.create_task(turn())
    try:
        await asyncio.gather(*(state.do(runs.newest, 10) for _ in range(20)))
    finally:
        spinning.cancel()
    assert turns > 20
