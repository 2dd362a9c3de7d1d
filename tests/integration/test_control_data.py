"""Leased data through the control plane: who gets which sequences, and what becomes of them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from syncline_control.state import State
from syncline_testing.control import Clock, client_of, on_both, pass_time, with_replicas

pytestmark = [pytest.mark.anyio, on_both]

DATASET = {"sequences": 100, "seed": 7, "content": "abc"}
SETTLE_S = 120.0 + 10.0
"""The round deadline and the lease of the profile lan."""


@pytest.fixture
async def api(api: httpx.AsyncClient) -> httpx.AsyncClient:
    """A run of replicas a and b, and of two fragments."""
    return await with_replicas(api, "a", "b")


async def asked(api: httpx.AsyncClient, replica: str, **body: Any) -> httpx.Response:
    body = {"incarnation": 1, "dataset": DATASET, **body}
    return await api.post(f"/v1/runs/r/replicas/{replica}/data", json=body)


async def given(api: httpx.AsyncClient, replica: str, want: int, **body: Any) -> list[list[int]]:
    answer = await asked(api, replica, want=want, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["ranges"]


def round_of(fragment: int, *pushes: tuple[str, list[list[int]], str], **more: Any) -> Any:
    return {
        "fragment": fragment,
        "fragment_name": f"block {fragment}",
        "kind": "pseudo-gradient",
        "revision": 1,
        "committed_at": 1000.0,
        "seconds": 0.5,
        "fragments": 2,
        "contributions": [
            {"replica": who, "incarnation": 1, "verdict": verdict, "weight": 0.5, "data": data}
            for who, data, verdict in pushes
        ],
        **more,
    }


async def report(api: httpx.AsyncClient, *rounds: Any) -> None:
    answer = await api.post("/v1/runs/r/reports", json={"rounds": list(rounds)})
    assert answer.status_code == 204, answer.text


async def view(api: httpx.AsyncClient) -> dict[str, Any]:
    return (await api.get("/v1/runs/r/data")).json()


async def test_nothing_is_leased_again_before_it_is_known_what_the_fragments_have(
    api: httpx.AsyncClient,
) -> None:
    """As after the loss of the database: replicas may come back before sync services do."""
    for told in ([], [0]):
        for fragment in told:
            await report(api, round_of(fragment, data={"trained": [[0, 0, 40]], "excluded": []}))
        answer = await asked(api, "a", want=10, begun=True)
        assert (answer.status_code, answer.json()["code"]) == (429, "OVERLOADED")
        assert f"of {len(told)}" in answer.json()["detail"]
    assert (await asked(api, "a", begun=True)).status_code == 200, "what asks for nothing may"
    await report(api, round_of(1, data={"trained": [[0, 0, 40]], "excluded": []}))
    assert await given(api, "a", 10, begun=True) == [[0, 40, 50]]


async def test_what_a_fragment_has_counts_though_its_service_has_set_back_its_clock(
    api: httpx.AsyncClient,
) -> None:
    assert await given(api, "a", 10) == [[0, 0, 10]]
    await report(api, *(round_of(fragment, committed_at=4600.0) for fragment in (0, 1)))
    has = {"trained": [[0, 0, 10]], "excluded": []}
    await report(api, *(round_of(number, revision=2, data=has) for number in (0, 1)))
    assert (await view(api))["trained"] == 10


async def test_where_a_fragment_stood_before_takes_nothing_back_that_was_told_since(
    api: httpx.AsyncClient,
) -> None:
    """As where a report that was held up comes after those that followed."""
    assert await given(api, "a", 10) == [[0, 0, 10]]
    push = ("a", [[0, 0, 10]], "accepted")
    for fragment in (0, 1):
        await report(api, round_of(fragment, push, revision=2, committed_at=1002.0))
    nothing = {"trained": [], "excluded": []}
    await report(api, round_of(0, kind="parameters", committed_at=1001.0, data=nothing))
    assert (await view(api))["trained"] == 10
    await report(api, round_of(0, kind="parameters", committed_at=1003.0, data=nothing))
    assert (await view(api))["trained"] == 0, "later, it has gone back"


async def beat(api: httpx.AsyncClient, replica: str) -> None:
    await api.post(f"/v1/runs/r/replicas/{replica}/heartbeat", json={"incarnation": 1})


async def test_sequences_are_given_once_and_done_when_every_fragment_has_them(
    api: httpx.AsyncClient,
) -> None:
    assert await given(api, "a", 30) == [[0, 0, 30]]
    assert await given(api, "b", 20) == [[0, 30, 50]]
    pushes = (("a", [[0, 0, 10]], "accepted"), ("b", [[0, 30, 40]], "anomalous"))
    await report(api, round_of(0, *pushes))
    assert (await view(api))["trained"] == 0
    await report(api, round_of(1, *pushes), round_of(1, *pushes))
    seen = await view(api)
    assert seen["epochs"] == [{"epoch": 0, "trained": 10, "excluded": 10, "leased": 30, "free": 50}]
    assert seen["holders"] == [
        {"replica": "a", "sequences": 20},
        {"replica": "b", "sequences": 10},
    ]


async def test_an_unheard_answer_comes_again_and_a_heard_one_does_not(
    api: httpx.AsyncClient,
) -> None:
    first = (await asked(api, "a", want=10)).json()
    assert (await asked(api, "a", want=10)).json() == first
    after = first["number"]
    assert (await asked(api, "a", want=10, after=after)).json() == {
        "number": after + 1,
        "ranges": [[0, 10, 20]],
    }


@pytest.mark.long
async def test_a_run_takes_other_data_until_it_has_trained_on_some(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    async def settles() -> None:
        for _ in range(int(SETTLE_S // 5) + 1):
            await pass_time(state, clock, 5.0)
            await beat(api, "b")

    other = {"sequences": 50, "seed": 7}
    await given(api, "a", 30)
    assert (await asked(api, "b", want=5, dataset=other)).status_code == 409
    await api.delete("/v1/runs/r/replicas/a?incarnation=1")
    assert (await asked(api, "b", want=5, dataset=other)).status_code == 409, "it settles"
    await settles()
    assert await given(api, "b", 5, dataset=other) == [[0, 0, 5]]
    events = (await api.get("/v1/events?run=r")).json()
    assert "(sequences is 50, and was 100)" in next(
        e["message"] for e in events if e["kind"] == "data.changed"
    )
    pushes = (("b", [[0, 0, 5]], "accepted"),)
    await report(api, round_of(0, *pushes))
    await api.delete("/v1/runs/r/replicas/b?incarnation=1")
    await settles()
    await api.post("/v1/runs/r/replicas", json={"replica": "a"})
    refused = await asked(api, "a", want=5, incarnation=2)
    assert refused.status_code == 409
    assert "has trained on" in refused.json()["detail"]


async def test_data_without_a_name_is_any_and_a_name_once_given_stays(
    api: httpx.AsyncClient,
) -> None:
    nameless = {**DATASET, "content": ""}
    assert (await asked(api, "a", dataset=nameless)).is_success
    assert (await asked(api, "a")).is_success
    assert (await asked(api, "b", dataset=nameless)).is_success
    assert (await view(api))["dataset"] == DATASET
    events = (await api.get("/v1/events?run=r")).json()
    assert "data.changed" not in {event["kind"] for event in events}
    await given(api, "a", 1)
    other = await asked(api, "b", dataset={**DATASET, "content": "zzz"})
    assert other.status_code == 409 and "content is abc there" in other.json()["detail"]


async def test_no_number_of_a_grant_is_beyond_what_can_be_told(api: httpx.AsyncClient) -> None:
    assert (await asked(api, "a", want=1, after=(1 << 53) - 1)).status_code == 422


async def test_what_is_given_back_goes_to_the_next_who_asks(api: httpx.AsyncClient) -> None:
    await given(api, "a", 30)
    assert (await asked(api, "a", after=1, returned=[[0, 5, 9]])).json()["ranges"] == []
    assert await given(api, "b", 10) == [[0, 5, 9], [0, 30, 36]]


async def asks_who_has_settled(api: httpx.AsyncClient) -> tuple[int, int]:
    """As of which version of the membership it asks fragments for their word, and its own."""
    membership = (await api.get("/v1/membership?wait_s=0")).json()
    return membership["runs"][0]["settling"], membership["version"]


async def says(api: httpx.AsyncClient, version: int, *fragments: int, rounds: Any = ()) -> None:
    words = [{"fragment": fragment, "membership": version} for fragment in fragments]
    body = {"rounds": list(rounds), "settled": words}
    assert (await api.post("/v1/runs/r/reports", json=body)).status_code == 204


async def test_a_lost_life_keeps_its_data_until_every_fragment_says_that_none_of_it_is_open(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    """For any time: rounds of late pushes alone, or of fewer than the minimum, have no deadline."""
    await report(api, *(round_of(f, kind="parameters", revision=0) for f in (0, 1)))
    await report(api, *(round_of(f) for f in (0, 1)))
    await given(api, "a", 10)
    await given(api, "b", 10)
    assert (await asks_who_has_settled(api))[0] == 0
    await api.delete("/v1/runs/r/replicas/a?incarnation=1")
    gone, version = await asks_who_has_settled(api)
    assert gone == version
    for _ in range(int(SETTLE_S // 5) + 1):
        await pass_time(state, clock, 5.0)
        await beat(api, "b")
    assert await given(api, "b", 2, after=1) == [[0, 20, 22]], "who asks is given other data"
    pushes = [round_of(f, ("a", [[0, 0, 4]], "accepted"), revision=2) for f in (0, 1)]
    await says(api, gone - 1, 0, 1)
    await says(api, gone + 1, 0, 1)  # which nobody has heard of: of another database
    await says(api, gone, 0, 7, rounds=pushes[:1])
    assert await given(api, "b", 1, after=2) == [[0, 22, 23]]
    await says(api, gone, 1, rounds=pushes[1:])
    assert await given(api, "b", 8, after=3) == [[0, 4, 10], [0, 23, 25]]
    assert (await view(api))["trained"] == 4
    assert (await asks_who_has_settled(api))[0] == 0
    events = (await api.get("/v1/events?run=r")).json()
    assert "6 sequences" in next(e["message"] for e in events if e["kind"] == "data.returned")


@pytest.mark.parametrize("restarts", [False, True], ids=["stands still", "restarts"])
async def test_what_settles_waits_for_what_was_done_while_the_control_plane_was_away(
    api: httpx.AsyncClient, state: State, clock: Clock, database: str, restarts: bool
) -> None:
    """Its service went back by a revision; whose push that was may have pushed it again."""
    assert await given(api, "a", 10) == [[0, 0, 10]]
    pushed = [round_of(fragment, ("a", [[0, 0, 10]], "accepted")) for fragment in (0, 1)]
    nothing = {"trained": [], "excluded": []}
    await report(api, *pushed, round_of(0, kind="parameters", committed_at=1001.0, data=nothing))
    await state.review_leases()
    assert (await view(api))["leased"] == 10
    async with AsyncExitStack() as stack:
        if restarts:
            await state.close()
        clock.now += 10 * SETTLE_S
        if restarts:
            state = await stack.enter_async_context(await State.open(database, clock=clock))
            api = await stack.enter_async_context(client_of(state))
        await state.review_leases()
        assert await given(api, "b", 2) == [[0, 10, 12]]
        for _ in range(2):
            await pass_time(state, clock, 8.0)
            await beat(api, "b")
        assert await given(api, "b", 2, after=1) == [[0, 0, 2]], "nobody has told of any"


async def test_a_new_life_is_given_what_the_older_one_had_only_once_that_is_free(
    api: httpx.AsyncClient,
) -> None:
    await given(api, "a", 10)
    await api.post("/v1/runs/r/replicas", json={"replica": "a"})
    assert (await asked(api, "a", want=4)).json()["code"] == "LEASE_LOST"
    assert await given(api, "a", 4, incarnation=2) == [[0, 10, 14]]


async def test_the_next_epoch_begins_when_nothing_is_left_of_this_one(
    api: httpx.AsyncClient,
) -> None:
    data = await given(api, "a", 110)
    assert data == [[0, 0, 100], [1, 0, 10]]
    await report(api, *(round_of(f, ("a", data, "accepted")) for f in (0, 1)))
    seen = await view(api)
    assert (seen["epoch"], seen["trained"], seen["leased"]) == (1, 110, 0)
    events = (await api.get("/v1/events?run=r")).json()
    assert any(event["kind"] == "data.epoch" and "100 seq" in event["message"] for event in events)


@pytest.mark.parametrize(
    "other", [{"sequences": 99}, {"seed": 8}, {"content": "abd"}], ids=lambda one: next(iter(one))
)
async def test_other_data_is_refused_by_name(api: httpx.AsyncClient, other: Any) -> None:
    await given(api, "a", 1)
    answer = await asked(api, "b", want=1, dataset={**DATASET, **other})
    assert (answer.status_code, answer.json()["code"]) == (409, "DATA_MISMATCH")
    assert next(iter(other)) in answer.json()["detail"]
    assert await given(api, "b", 1, dataset={**DATASET, "content": ""}) == [[0, 1, 2]]


async def test_a_run_from_a_checkpoint_goes_on_behind_what_its_fragments_have(
    api: httpx.AsyncClient,
) -> None:
    """So does one whose control plane has another database: its services tell where they stand."""
    for fragment, trained in ((0, [[0, 0, 60]]), (1, [[0, 0, 40], [0, 50, 60]])):
        data = {"trained": trained, "excluded": [[0, 60, 62]]}
        await report(api, round_of(fragment, kind="parameters", data=data))
    assert (await view(api))["dataset"] is None
    assert await given(api, "a", 15) == [[0, 40, 50], [0, 62, 67]]
    assert (await view(api))["epochs"] == [
        {"epoch": 0, "trained": 50, "excluded": 2, "leased": 15, "free": 33}
    ]


async def test_data_that_was_told_before_anybody_asked_counts(api: httpx.AsyncClient) -> None:
    pushes = (("a", [[0, 0, 4]], "accepted"), ("b", [[0, 4, 6]], "anomalous"))
    await report(api, round_of(0, *pushes), round_of(1, *pushes))
    assert await given(api, "a", 2) == [[0, 6, 8]]
    assert (await view(api))["epochs"][0]["trained"] == 4


@pytest.mark.parametrize(
    "body",
    [
        {"want": -1},
        {"want": 1 << 40},
        {"returned": [[0, 5, 5]]},
        {"returned": [[0, 5, 9], [0, 9, 12]]},
        {"returned": [[0, 5]]},
        {"dataset": {"sequences": 0, "seed": 1}},
        {"dataset": {"sequences": 5}},
        {"more": 1},
    ],
    ids=str,
)
async def test_a_malformed_ask_is_refused_and_changes_nothing(
    api: httpx.AsyncClient, body: Any
) -> None:
    answer = await asked(api, "a", **body)
    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_REQUEST")
    assert (await view(api))["dataset"] is None


async def test_a_report_of_what_nobody_can_have_read_spoils_nothing(api: httpx.AsyncClient) -> None:
    await given(api, "a", 10)
    far = [[0, 90, 1 << 40], [1 << 50, 0, 1]]
    await report(api, *(round_of(f, ("a", far, "accepted")) for f in (0, 1)))
    seen = await view(api)
    assert (seen["trained"], seen["leased"]) == (10, 10)
