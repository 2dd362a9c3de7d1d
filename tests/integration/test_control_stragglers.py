"""Stragglers over REST: what replicas tell of their pace, and what comes back to them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from syncline_control.state import State
from syncline_testing.control import Clock, client_of, on_both_at_length, pass_time

pytestmark = [pytest.mark.anyio, on_both_at_length]

SLOW, FAST = 0.4, 2.0
LET_GO = {"policy": "let-go", "seconds": 5, "let_go_seconds": 15}
SLOWEST = {"a": FAST, "b": FAST, "c": SLOW / 4}


class Crew:
    """Replicas of the run ``r``, which beat as time goes by."""

    def __init__(self, api: httpx.AsyncClient, state: State, clock: Clock) -> None:
        self.api, self._state, self._clock = api, state, clock
        self.answers: dict[str, dict[str, Any]] = {}

    async def create(self, *names: str, **settings: Any) -> None:
        timeouts = {"timeouts": {"lease": 10.0}}
        body = {"name": "r", "settings": settings | timeouts}
        assert (await self.api.post("/v1/runs", json=body)).is_success
        for name in names:
            await self.join(name)

    async def join(self, name: str) -> None:
        joined = await self.api.post("/v1/runs/r/replicas", json={"replica": name})
        assert joined.is_success

    async def train(self, seconds: float, /, **rates: float) -> None:
        """Let so much time go by, in which replicas train at these rates."""
        for _ in range(round(seconds / 5.0)):
            for name, rate in rates.items():
                progress = {"phase": "training", "steps_per_second": rate}
                beat = {"incarnation": 1, "progress": progress}
                path = f"/v1/runs/r/replicas/{name}/heartbeat"
                answer = await self.api.post(path, json=beat)
                assert answer.is_success, answer.text
                self.answers[name] = answer.json()
            await pass_time(self._state, self._clock, 5.0)

    async def view(self, name: str) -> dict[str, Any]:
        listed = (await self.api.get("/v1/runs/r/replicas")).json()
        return next(one for one in listed if one["replica"] == name)

    async def events(self) -> list[tuple[str, str, str]]:
        found = (await self.api.get("/v1/events?run=r")).json()
        kinds = ("replica.straggles", "replica.keeps_up", "replica.steps", "replica.draining")
        return [(e["kind"], e["replica"], e["message"]) for e in found if e["kind"] in kinds]

    async def drained(self) -> list[str]:
        return [who for kind, who, _ in await self.events() if kind == "replica.draining"]


@pytest.fixture
def crew(api: httpx.AsyncClient, state: State, clock: Clock) -> Crew:
    return Crew(api, state, clock)


async def test_a_straggler_is_named_and_nothing_else(crew: Crew) -> None:
    await crew.create("a", "b", "c", stragglers={"seconds": 15})
    await crew.train(30.0, a=FAST, b=FAST, c=SLOW)
    view = await crew.view("c")
    assert (view["pace"], view["straggles"], view["step_share"]) == (0.2, True, 1.0)
    assert (await crew.view("a"))["straggles"] is False
    ((kind, replica, message),) = await crew.events()
    assert (kind, replica) == ("replica.straggles", "c")
    assert message == "c straggles: 0.20 times as fast as the others' median, for 15 s."
    shown = (await crew.api.get("/metrics")).text
    assert 'syncline_replica_straggles{replica="c",run="r"} 1.0' in shown
    assert 'syncline_replica_pace_ratio{replica="c",run="r"} 0.2' in shown
    assert 'syncline_replica_straggles{replica="a",run="r"} 0.0' in shown
    await crew.train(10.0, a=FAST, b=FAST, c=FAST)
    assert [kind for kind, _, _ in await crew.events()][1:] == ["replica.keeps_up"]


async def test_the_answer_to_its_heartbeat_gives_a_straggler_fewer_steps(crew: Crew) -> None:
    await crew.create("a", "b", stragglers={"policy": "fewer-steps", "seconds": 5})
    await crew.train(20.0, a=1.0, b=0.5)
    assert crew.answers["b"]["step_share"] == 0.5
    assert crew.answers["a"]["step_share"] == 1.0
    said = "b makes 50 % of a round's inner steps, so that nobody waits."
    assert ("replica.steps", "b", said) in await crew.events()
    await crew.join("b")  # again: a new life, of which nobody knows how fast it is
    view = await crew.view("b")
    assert (view["pace"], view["straggles"], view["step_share"]) == (None, False, 1.0)


async def test_who_is_too_slow_even_so_is_let_go_but_never_below_the_minimum(crew: Crew) -> None:
    await crew.create("a", "b", "c", "d", min_replicas=3, stragglers=LET_GO)
    rates = {"a": FAST, "b": FAST, "c": SLOW / 2, "d": SLOW / 4}
    await crew.train(15.0, **rates)
    assert not crew.answers["d"]["drain"]
    await crew.train(20.0, **rates)
    drained = [(who, why) for kind, who, why in await crew.events() if kind == "replica.draining"]
    ((who, why),) = drained
    assert crew.answers[who]["drain"] and "too slow for even 25 %" in why
    await crew.api.delete(f"/v1/runs/r/replicas/{who}?incarnation=1")
    del rates[who]
    await crew.train(30.0, **rates)
    kinds = [kind for kind, _, _ in await crew.events()]
    assert kinds.count("replica.draining") == 1, "three are the minimum"


@pytest.mark.parametrize(
    "way",
    [
        {"sync_seconds": 5.0},
        pytest.param({"sync_every": 4, "overlap_steps": 4}, marks=pytest.mark.long),
    ],
)
async def test_where_fewer_steps_cannot_be_asked_who_is_too_slow_is_let_go(
    crew: Crew, way: dict[str, Any]
) -> None:
    await crew.create("a", "b", "c", stragglers=LET_GO, **way)
    await crew.train(35.0, **SLOWEST)
    assert await crew.drained() == ["c"]
    assert crew.answers["c"]["step_share"] == 1.0


async def test_a_live_change_of_policy_takes_shares_back(crew: Crew) -> None:
    await crew.create("a", "b", stragglers={"policy": "fewer-steps", "seconds": 5})
    await crew.train(20.0, a=1.0, b=0.5)
    patch = {"settings": {"stragglers": {"policy": "tell"}}}
    assert (await crew.api.patch("/v1/runs/r/settings", json=patch)).is_success
    await crew.train(15.0, a=1.0, b=0.5)
    view = await crew.view("b")
    assert (view["straggles"], view["step_share"]) == (True, 1.0)
    assert crew.answers["b"]["step_share"] == 1.0


async def test_a_paused_run_judges_nobody(crew: Crew) -> None:
    await crew.create("a", "b", stragglers={"seconds": 10})
    await crew.api.post("/v1/runs/r/pause")
    await crew.train(40.0, a=FAST, b=SLOW)
    assert await crew.events() == []


@pytest.mark.long
async def test_a_pause_is_not_counted_as_slowness(crew: Crew) -> None:
    """In which the slow machine may have been mended."""
    await crew.create("a", "b", "c", stragglers=LET_GO)
    await crew.train(15.0, **SLOWEST)
    await crew.api.post("/v1/runs/r/pause")
    await crew.train(40.0, **SLOWEST)
    await crew.api.post("/v1/runs/r/resume")
    await crew.train(10.0, **SLOWEST)
    assert await crew.drained() == []
    assert (await crew.view("c"))["straggles"], "its name it keeps"
    await crew.train(20.0, **SLOWEST)
    assert await crew.drained() == ["c"]


async def test_a_time_without_a_control_plane_is_not_counted_as_slowness(
    database: str, clock: Clock
) -> None:
    async with await State.open(database, clock=clock) as state, client_of(state) as api:
        crew = Crew(api, state, clock)
        await crew.create("a", "b", "c", stragglers=LET_GO)
        await crew.train(15.0, **SLOWEST)
    clock.now += 40.0
    async with await State.open(database, clock=clock) as state, client_of(state) as api:
        crew = Crew(api, state, clock)
        await crew.train(10.0, **SLOWEST)
        assert await crew.drained() == []
        await crew.train(20.0, **SLOWEST)
        assert await crew.drained() == ["c"]


async def test_a_pace_that_cannot_be_ends_nobodys_watch(crew: Crew) -> None:
    """Leases are looked after in the same turn: who is gone must still be seen to be."""
    await crew.create("a", "b", "c")
    await crew.train(5.0, a=1.0, b=0.0, c=-1.0)
    await crew.train(15.0, a=1.0, c=-1.0)
    assert (await crew.view("b"))["state"] == "lost"
    view = await crew.view("c")
    assert (view["state"], view["pace"]) == ("alive", None)
