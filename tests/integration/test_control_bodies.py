"""What a client may send that is JSON to Python and nothing that could be kept."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from syncline_control import body, intake
from syncline_proto.ranges import Range
from syncline_proto.reports import ContributionView, Reports, RoundReport
from syncline_sync.report_queue import BATCH_MAX

pytestmark = pytest.mark.anyio

HALF = "\ud800"
ROUND = {
    "fragment": 0,
    "fragment_name": "f",
    "kind": "pseudo-gradient",
    "revision": 1,
    "committed_at": 1.0,
    "seconds": 1.0,
}
PUSH = {"replica": "a", "incarnation": 1, "verdict": "accepted", "weight": 1.0}
REPLICAS = "/v1/runs/r/replicas"
BEAT = "/v1/runs/r/replicas/a/heartbeat"
REPORTS = "/v1/runs/r/reports"


@pytest.fixture
async def api(api: httpx.AsyncClient) -> httpx.AsyncClient:
    await api.post("/v1/runs", json={"name": "r"})
    await api.post(REPLICAS, json={"replica": "a"})
    return api


@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        ("POST", "/v1/runs", {"name": HALF}),
        ("POST", "/v1/runs", {"name": "s", "job": {"a": [HALF]}}),
        ("POST", "/v1/runs", {"name": "s", "job": {HALF: 1}}),
        ("PATCH", "/v1/runs/r/settings", {"settings": {HALF: 1}}),
        ("POST", REPLICAS, {"replica": "b", "host": HALF}),
        ("POST", BEAT, {"incarnation": 1, "progress": {HALF: 1}}),
        ("POST", REPORTS, {"events": [{"kind": "a", "message": HALF}]}),
        ("POST", REPORTS, {"rounds": [{**ROUND, "fragment_name": HALF}]}),
        ("POST", REPORTS, {"rounds": [{**ROUND, "contributions": [{**PUSH, "reason": HALF}]}]}),
        ("POST", REPORTS, {"rounds": [{**ROUND, "contributions": [{**PUSH, "replica": HALF}]}]}),
        ("PUT", "/v1/sync-services/s", {"name": "s", "address": HALF, "instance": "x"}),
        ("POST", BEAT, {"incarnation": 1, "progress": {"inner_step": 1 << 2000}}),
        ("POST", "/v1/runs", {"name": "s", "settings": {"token_budget": 1 << 64}}),
    ],
)
async def test_what_cannot_be_kept_is_refused_by_every_route(
    api: httpx.AsyncClient, method: str, path: str, sent: dict[str, Any]
) -> None:
    headers = {"content-type": "application/json"}
    answer = await api.request(method, path, content=json.dumps(sent), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_REQUEST"), answer.text
    for where in ("/v1/runs", REPLICAS, "/v1/events", "/v1/membership?wait_s=0", "/metrics"):
        assert (await api.get(where)).status_code == 200


@pytest.mark.parametrize(
    "content",
    [b"[" * 50_000, b'{"name":"s","job":' + b'{"a":' * 500 + b"1" + b"}" * 501, b"\xff\xfe{"]
    + [b'{"name":"s","job":{"a":"\xed\xa0\x80"}}', b'{"name":"s","job":{"a":%s}}' % (b"9" * 5000)],
)
async def test_a_text_that_is_no_json_of_ours_is_refused(
    api: httpx.AsyncClient, content: bytes
) -> None:
    headers = {"content-type": "application/json"}
    answer = await api.post("/v1/runs", content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_REQUEST")
    assert "not valid JSON" in answer.json()["detail"]


def groups(content: bytes) -> int:
    return content.count(b"[") + content.count(b"{")


def values(content: bytes) -> int:
    return groups(content) + content.count(b",")


@pytest.mark.parametrize(
    ("part", "bound", "most"),
    [(b",[]", "GROUPS_MAX", 503), (b",{}", "GROUPS_MAX", 503), (b",0", "VALUES_MAX", 504)],
)
async def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, part: bytes, bound: str, most: int
) -> None:
    monkeypatch.setattr(intake, bound, most)
    headers = {"content-type": "application/json"}
    content = b'{"name":"s","job":{"a":[0' + 500 * part
    answer = await api.post("/v1/runs", content=content + b"]}}", headers=headers)
    assert answer.status_code == 201, answer.text
    answer = await api.post("/v1/runs", content=content + part, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "INVALID_REQUEST"), "no JSON, too"


def test_the_largest_batch_of_a_sync_service_is_within_both_bounds() -> None:
    """Rounds of 96 replicas, each of which has read from three ranges of the data."""
    count = 96
    push = ContributionView(replica="replica-12", incarnation=1, verdict="accepted",
                            weight=1 / count, norm=1.2345678, z=0.1234567, inner_steps=64,
                            tokens=131_072,
                            data=[Range(2, 1_234_567, 1_234_631)] * 3)  # fmt: skip
    one = RoundReport(fragment=3, fragment_name="block-3", kind="pseudo-gradient", revision=123,
                      committed_at=1_767_225_600.0, seconds=0.5, effective_sample_size=96.0,
                      merged_norm=1.2345678901, clip_factor=1.0,
                      contributions=[push] * count)  # fmt: skip
    text = one.model_dump_json().encode() + b","
    assert BATCH_MAX * len(text) < intake.BODY_BYTES_MAX
    assert BATCH_MAX * values(text) <= intake.VALUES_MAX
    assert 0.9 * intake.GROUPS_MAX < BATCH_MAX * groups(text) <= intake.GROUPS_MAX


async def test_an_object_of_too_many_keys_is_refused_by_its_name(api: httpx.AsyncClient) -> None:
    job = {f"k{number}": 1 for number in range(body.KEYS_MAX)}
    assert (await api.post("/v1/runs", json={"name": "s", "job": job})).status_code == 201
    answer = await api.post("/v1/runs", json={"name": "t", "job": {**job, "one": 1}})
    assert answer.status_code == 422
    assert "job has more than 10,000 keys" in answer.json()["detail"]


def test_of_many_wrong_parts_the_first_is_told() -> None:
    """Each that is told costs; a body has room for a quarter of a million."""
    for sent in (
        {"rounds": [{**ROUND, "contributions": [{}] * 1000}]},
        {"rounds": [{}] * 1000},
        {"events": [{}] * 1000},
    ):
        with pytest.raises(ValidationError) as caught:
            Reports.model_validate(sent)
        assert caught.value.error_count() < 10


async def test_large_bodies_are_read_one_at_a_time_beside_the_loop(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, beaten = body.read, threading.Event()
    reading, waited = list[int](), list[bool]()

    def slowly(content: bytes) -> Any:
        if len(content) <= intake.SMALL_BYTES:
            return read(content)
        reading.append(1)
        try:
            assert len(reading) == 1
            waited.append(beaten.wait(30))
            return read(content)
        finally:
            reading.pop()

    monkeypatch.setattr(body, "read", slowly)
    job = {"a": "x" * intake.SMALL_BYTES}
    large = [
        asyncio.create_task(api.post("/v1/runs", json={"name": f"l{number}", "job": job}))
        for number in range(3)
    ]
    while not reading:
        await asyncio.sleep(0)
    assert (await api.post(BEAT, json={"incarnation": 1})).status_code == 200
    beaten.set()
    assert [one.status_code for one in await asyncio.gather(*large)] == [201] * 3
    assert waited == [True] * 3


async def test_huge_weights_still_have_a_mean(api: httpx.AsyncClient) -> None:
    huge = [
        {**ROUND, "fragment": i, "contributions": [{**PUSH, "weight": 1.7e308}]} for i in (0, 1)
    ]
    assert (await api.post(REPORTS, json={"rounds": huge})).status_code == 204
    assert (await api.get(REPLICAS)).json()[0]["weight"] == pytest.approx(1.7e308)


async def test_a_method_that_is_not_there_is_answered_with_those_that_are(
    api: httpx.AsyncClient,
) -> None:
    answer = await api.delete("/healthz")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


async def test_openapi_says_what_health_answers_are(api: httpx.AsyncClient) -> None:
    document = (await api.get("/openapi.json")).json()
    for path in ("/healthz", "/readyz", "/metrics"):
        assert "text/plain" in document["paths"][path]["get"]["responses"]["200"]["content"]
        assert (await api.get(path)).headers["content-type"].startswith("text/plain")


WORDS = st.text()  # of which half a surrogate pair is none
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False)
    | WORDS
    | st.integers(-body.WHOLE_MAX, body.WHOLE_MAX),
    lambda below: st.lists(below) | st.dictionaries(WORDS, below),
)


@given(VALUES)
def test_everything_else_is_read_as_it_is(value: Any) -> None:
    assert body.read(json.dumps(value).encode()) == value
    assert body.read(json.dumps(value, ensure_ascii=False).encode()) == value
