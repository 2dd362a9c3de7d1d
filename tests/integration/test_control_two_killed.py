"""Two control planes on one database, killed in turn while many ask both of them at random.

No incarnation is given twice, no round counts twice, no lease that was renewed is lost, and
every long poll comes to know the last change. Clients go to the other one where one is away.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from syncline_proto.names import EVENTS_MAX
from syncline_testing.cluster import Service, free_ports
from syncline_testing.postgres import Server

pytestmark = pytest.mark.anyio

SEED = 20
LEASE_S = 2.0
KILLS = 2
SILENT_S = 60.0
"""Within this who has fallen silent is lost, and everybody knows the last change."""


@dataclass(slots=True)
class Heard:
    """What clients were told, by answers of success alone."""

    incarnations: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    kept_until: defaultdict[tuple[str, int], float] = field(
        default_factory=lambda: defaultdict[tuple[str, int], float](float)
    )
    """When the lease may be lost at the earliest: a full length after its last renewal began."""
    refused: list[str] = field(default_factory=list[str])
    """Whose lease was said to be lost while it was renewed."""
    rounds: int = 0
    versions: dict[int, int] = field(default_factory=dict[int, int])
    """By follower."""


class Two:
    """Both control planes, and how to ask one of them."""

    def __init__(self, folder: Path, database: str) -> None:
        self.services: list[Service] = []
        self.clients: list[httpx.AsyncClient] = []
        for number, port in enumerate(free_ports(2)):
            url = f"http://127.0.0.1:{port}"
            args = ["--port", str(port), "--database", database]
            log = folder / f"control-{number}.log"
            self.services.append(Service("syncline_control", f"{url}/readyz", args, log))
            self.clients.append(
                httpx.AsyncClient(base_url=f"{url}/v1", timeout=30.0, trust_env=False)
            )

    async def ask(
        self, chance: random.Random, method: str, path: str, **what: Any
    ) -> httpx.Response:
        """Ask one of them, and the other if it is away; again until one answers."""
        for client in itertools.cycle(chance.sample(self.clients, 2)):
            try:
                answer = await client.request(method, path, **what)
            except httpx.TransportError:
                await asyncio.sleep(0.02)
                continue
            if answer.status_code < 500:
                return answer
            await asyncio.sleep(0.02)
        raise AssertionError


@asynccontextmanager
async def running(folder: Path, database: str) -> AsyncIterator[Two]:
    two = Two(folder, database)
    try:
        await asyncio.gather(*(asyncio.to_thread(one.start) for one in two.services))
        yield two
    finally:
        for client in two.clients:
            await client.aclose()
        for one in two.services:
            one.stop()


async def live(
    two: Two, heard: Heard, chance: random.Random, name: str, over: asyncio.Event
) -> None:
    """Lives of one replica, each with heartbeats; they end in one of four ways."""
    path = "/runs/r/replicas"
    while not over.is_set():
        began = time.time()
        lease = (await two.ask(chance, "POST", path, json={"replica": name})).json()
        life = (name, lease["incarnation"])
        heard.incarnations[life] += 1
        heard.kept_until[life] = began + LEASE_S
        end = chance.choice(["leaves", "is drained", "falls silent", "comes again"])
        for _ in range(chance.randint(2, 8)):
            began = time.time()
            body = {"incarnation": life[1]}
            answer = await two.ask(chance, "POST", f"{path}/{name}/heartbeat", json=body)
            if not answer.is_success:
                if time.time() < heard.kept_until[life]:
                    heard.refused.append(answer.text)
                break  # this test itself was too slow
            heard.kept_until[life] = began + LEASE_S
            await asyncio.sleep(chance.uniform(0.05, 0.3))
        if end == "is drained":
            await two.ask(chance, "POST", f"{path}/{name}/drain")
        if end in ("leaves", "is drained"):
            query = {"incarnation": life[1]}
            await two.ask(chance, "DELETE", f"{path}/{name}", params=query)
        if end == "falls silent":
            await asyncio.sleep(chance.uniform(1.0, 2.0) * LEASE_S)


async def report(
    two: Two, heard: Heard, chance: random.Random, number: int, over: asyncio.Event
) -> None:
    """A sync service with one fragment: each round is told once, or twice, or to both at once."""
    for revision in itertools.count(1):
        if over.is_set():
            return
        told = {
            "fragment": number,
            "fragment_name": f"fragment-{number}",
            "kind": "pseudo-gradient",
            "revision": revision,
            "committed_at": time.time(),
            "seconds": 0.1,
            "committed_tokens": 10 * revision,
            "contributions": [],
        }
        heard.rounds += 1
        times = chance.randint(1, 2)
        body = {"rounds": [told], "events": []}
        answers = await asyncio.gather(
            *(two.ask(chance, "POST", "/runs/r/reports", json=body) for _ in range(times))
        )
        assert all(answer.is_success for answer in answers), answers[0].text
        await asyncio.sleep(chance.uniform(0.0, 0.2))


async def follow(two: Two, heard: Heard, chance: random.Random, number: int) -> None:
    """A long poll after the other; versions never go back."""
    heard.versions[number] = 0
    while True:
        query = {"after": heard.versions[number], "wait_s": 20}
        version = (await two.ask(chance, "GET", "/membership", params=query)).json()["version"]
        assert version >= heard.versions[number]
        heard.versions[number] = version


async def until(holds: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(SILENT_S):
        while not await holds():
            await asyncio.sleep(0.1)


@pytest.mark.long
async def test_whatever_is_killed_nothing_is_given_counted_or_lost_twice(
    tmp_path: Path, postgres: Server
) -> None:
    chance, heard, over = random.Random(SEED), Heard(), asyncio.Event()
    async with running(tmp_path, postgres.database()) as two:
        settings = {"timeouts": {"lease": LEASE_S}}
        await two.ask(chance, "POST", "/runs", json={"name": "r", "settings": settings})
        works = [live(two, heard, chance, f"replica-{i}", over) for i in range(8)]
        works += [report(two, heard, chance, i, over) for i in range(2)]
        working = [asyncio.create_task(work) for work in works]
        followers = [asyncio.create_task(follow(two, heard, chance, i)) for i in range(4)]
        for kill in range(KILLS):
            one = two.services[kill % 2]
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            await asyncio.to_thread(one.kill)
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            await asyncio.to_thread(one.start)
        over.set()
        await asyncio.gather(*working)

        async def get(path: str) -> Any:
            return (await two.ask(chance, "GET", path)).json()

        async def all_are_gone() -> bool:
            return (await get("/runs/r"))["replicas_alive"] == 0

        async def all_know() -> bool:
            last = (await get("/membership?wait_s=0"))["version"]
            return set(heard.versions.values()) == {last}

        await until(all_are_gone)
        await until(all_know)
        assert not any(one.done() for one in followers)
        for one in followers:
            one.cancel()
        run, told = await get("/runs/r"), await get(f"/events?run=r&limit={EVENTS_MAX}")

    assert not heard.refused
    assert max(heard.incarnations.values()) == 1
    assert (run["fragment_rounds"], run["exclusions"]) == (heard.rounds, 0)
    assert len(told) < EVENTS_MAX
    assert [one["id"] for one in told] == sorted({one["id"] for one in told})
    lives: Counter[str] = Counter()
    for one in told:
        if one["kind"] in ("replica.joined", "replica.fenced"):
            lives[one["replica"]] += 1
        if one["kind"] == "replica.lost":
            life = (one["replica"], lives[one["replica"]])
            assert one["time"] >= heard.kept_until[life], life
