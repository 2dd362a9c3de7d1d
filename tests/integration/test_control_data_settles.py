"""What a replica that is gone held of the data is nobody's while a round may have a push of it.

It is all the same whether anybody asks for data in the meantime, while the run stands still.
"""

from __future__ import annotations

import httpx
import pytest

from syncline_control.state import State
from syncline_testing.control import Clock, on_both_at_length, pass_time
from syncline_testing.queries import queries_of

pytestmark = [pytest.mark.anyio, on_both_at_length]

LEASE_S, DEADLINE_S = 1.0, 2.0
SETTLE_S = DEADLINE_S + LEASE_S
DATASET = {"sequences": 100, "seed": 7}
REPLICAS = "/v1/runs/r/replicas"


@pytest.fixture
async def api(api: httpx.AsyncClient) -> httpx.AsyncClient:
    """A run that needs two of its replicas a, b and c; a was given the first ten sequences."""
    timeouts = {"lease": LEASE_S, "round_deadline": DEADLINE_S}
    body = {"name": "r", "settings": {"min_replicas": 2, "timeouts": timeouts}}
    assert (await api.post("/v1/runs", json=body)).is_success
    for name in "abc":
        await api.post(REPLICAS, json={"replica": name})
    assert await given(api, "a", 10) == [[0, 0, 10]]
    return api


async def given(api: httpx.AsyncClient, replica: str, want: int, after: int = 0) -> list[list[int]]:
    body = {"incarnation": 1, "dataset": DATASET, "want": want, "after": after}
    answer = await api.post(f"{REPLICAS}/{replica}/data", json=body)
    assert answer.is_success, answer.text
    return answer.json()["ranges"]


async def leaves(api: httpx.AsyncClient, replica: str) -> None:
    assert (await api.delete(f"{REPLICAS}/{replica}?incarnation=1")).is_success


async def train(
    api: httpx.AsyncClient, state: State, clock: Clock, seconds: float, *replicas: str
) -> None:
    """Let so much time go by, in which these replicas beat."""
    for _ in range(round(seconds / (LEASE_S / 2))):
        for name in replicas:
            beat = await api.post(f"{REPLICAS}/{name}/heartbeat", json={"incarnation": 1})
            assert beat.is_success, beat.text
        await pass_time(state, clock, LEASE_S / 2)


async def test_it_settles_anew_when_a_pause_ends(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    await api.post("/v1/runs/r/pause")
    await leaves(api, "a")
    await train(api, state, clock, 2 * SETTLE_S, "b", "c")
    await api.post("/v1/runs/r/resume")
    assert await given(api, "b", 2) == [[0, 10, 12]]
    await train(api, state, clock, SETTLE_S, "b", "c")
    assert await given(api, "b", 2, after=1) == [[0, 0, 2]]


@pytest.mark.parametrize("why", ["a pause", "too few"])
async def test_who_asks_while_no_round_closes_is_given_other_data(
    api: httpx.AsyncClient, state: State, clock: Clock, why: str
) -> None:
    alive = ["b", "c"] if why == "a pause" else ["b"]
    if why == "a pause":
        await api.post("/v1/runs/r/pause")
    else:
        await leaves(api, "c")
    await leaves(api, "a")
    for number in range(3):
        await train(api, state, clock, SETTLE_S, *alive)
        first = 10 + 2 * number
        assert await given(api, "b", 2, after=number) == [[0, first, first + 2]]


async def test_it_settles_anew_when_somebody_makes_the_minimum(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    await leaves(api, "a")
    await leaves(api, "c")
    await train(api, state, clock, 2 * SETTLE_S, "b")
    assert (await api.post(REPLICAS, json={"replica": "d"})).is_success
    assert await given(api, "d", 2) == [[0, 10, 12]]
    await train(api, state, clock, SETTLE_S, "b", "d")
    assert await given(api, "d", 2, after=1) == [[0, 0, 2]]


@pytest.mark.parametrize(
    "order", ["0011", *(pytest.param(one, marks=pytest.mark.long) for one in ("0101", "0110"))]
)
async def test_what_a_phase_that_starts_again_has_forgotten_settles_in_any_order_of_reports(
    api: httpx.AsyncClient, state: State, clock: Clock, order: str
) -> None:
    """Its reader is there, and takes it for done: each fragment had a push of it."""
    push = {"replica": "a", "incarnation": 1, "verdict": "accepted", "weight": 1.0}
    step = {
        "kind": "gradient",
        "gradient_step": 1,
        "contributions": [{**push, "data": [[0, 0, 8]]}],
    }
    begun_anew = {"kind": "parameters", "data": {"trained": [], "excluded": []}}
    for at, of in enumerate(order):
        told = begun_anew if of in order[:at] else step
        one = {"fragment": int(of), "fragment_name": of, "fragments": 2, "revision": 0, **told}
        one |= {"committed_at": 1000.0 + at, "seconds": 0.5}
        answer = await api.post("/v1/runs/r/reports", json={"rounds": [one]})
        assert answer.is_success, answer.text
    assert await given(api, "b", 2) == [[0, 10, 12]]
    await train(api, state, clock, SETTLE_S + LEASE_S, "a", "b", "c")
    assert await given(api, "b", 10, after=1) == [[0, 0, 8], [0, 12, 14]]
    assert (await api.get("/v1/runs/r/data")).json()["holders"] == [
        {"replica": "a", "sequences": 2},
        {"replica": "b", "sequences": 12},
    ]


async def test_however_many_are_lost_at_once_the_runs_data_is_read_once(
    api: httpx.AsyncClient, state: State, clock: Clock
) -> None:
    """A fleet that dies together must not hold up every other heartbeat."""
    names = [f"fleet-{number}" for number in range(20)]
    for name in names:
        await api.post(REPLICAS, json={"replica": name})
        await given(api, name, 1)
    with queries_of("data_spans.stop") as seen:
        await train(api, state, clock, 2 * LEASE_S, "b", "c")
    states = {one["replica"]: one["state"] for one in (await api.get(REPLICAS)).json()}
    assert {states[name] for name in names} == {"lost"}
    assert len(seen) == 1
    told = (await api.get("/v1/events?run=r&kind=replica.lost")).json()
    assert {one["replica"] for one in told} == {"a", *names}
    await train(api, state, clock, SETTLE_S, "b", "c")
    assert await given(api, "b", 30) == [[0, 0, 30]]
