"""Two control planes on one PostgreSQL database: each acts, waits and judges as if alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import psycopg
import pytest
from sqlalchemy import text

from syncline_control import postgres as ours
from syncline_control.operations import events, replicas, runs, services
from syncline_control.pulse import Pulse
from syncline_control.state import State
from syncline_control.streams import Streams
from syncline_control.transaction import Transaction
from syncline_proto.errors import LeaseLost, Unreachable
from syncline_proto.rest import (
    Heartbeat,
    Registration,
    ReplicaRegister,
    RunCreate,
    SyncServiceHello,
)
from syncline_proto.settings import RunSettings, TimeoutSettings
from syncline_testing.control import Clock
from syncline_testing.postgres import Server

pytestmark = pytest.mark.anyio

LEASE_S = 10.0
NEVER_S = 3600.0
WAIT_S = 30.0


@pytest.fixture
def database(postgres: Server) -> str:
    return postgres.database()


@pytest.fixture
async def two(database: str, clock: Clock) -> AsyncIterator[tuple[State, State]]:
    """Both have a run r, whose replica a is alive."""
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(await State.open(database, clock=clock))
            for _ in range(2)
        ]
        settings = RunSettings(timeouts=TimeoutSettings(lease=LEASE_S))
        await one.do(runs.create, RunCreate(name="r", settings=settings))
        await register(one)
        yield one, other


async def register(state: State, replica: str = "a") -> Registration:
    return await state.do(replicas.register, "r", ReplicaRegister(replica=replica))


async def beat(state: State, replica: str = "a") -> None:
    await Pulse(state).beat("r", replica, Heartbeat(incarnation=1))


async def kinds(state: State) -> list[str]:
    return [event.kind for event in await state.do(events.listed, "r", None, 1000)]


async def pass_time(clock: Clock, seconds: float, *states: State) -> None:
    """Let time go by while these look after the leases, and nobody else does."""
    for _ in range(round(seconds / 0.5)):
        clock.now += 0.5
        for state in states:
            await state.review_leases()


@pytest.fixture
def only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is woken by what is told, or not at all."""
    monkeypatch.setattr(ours, "LOOK_S", NEVER_S)


@pytest.fixture
def only_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is told; whoever waits looks by itself."""
    monkeypatch.setattr(ours, "tell", lambda *_: None)
    monkeypatch.setattr(ours, "LOOK_S", 0.1)


@pytest.mark.usefixtures("only_told")
async def test_a_long_poll_hears_what_the_other_changed(two: tuple[State, State]) -> None:
    for waits, acts in (two, two[::-1]):
        known = await waits.membership(None, None, 0)
        waiting = asyncio.create_task(waits.membership(None, known.version, WAIT_S))
        lease = await register(acts)
        told = await waiting
        assert told.version > known.version
        assert [(m.replica, m.incarnation) for m in told.runs[0].members] == [
            ("a", lease.incarnation)
        ]


@pytest.mark.usefixtures("only_told")
async def test_a_stream_tells_what_happened_at_the_other(two: tuple[State, State]) -> None:
    one, other = two
    lines = Streams(one).lines("r", await one.do(events.newest_id, "r"))
    await anext(lines)
    told = asyncio.ensure_future(anext(lines))
    await register(other, "b")
    assert "replica.joined" in await told


@pytest.mark.usefixtures("only_looks")
async def test_what_was_not_told_is_found_by_looking(two: tuple[State, State]) -> None:
    one, other = two
    known = await one.membership(None, None, 0)
    waiting = asyncio.create_task(one.membership(None, known.version, WAIT_S))
    await register(other)
    assert (await waiting).version > known.version


@pytest.mark.usefixtures("only_told")
async def test_who_is_cut_off_listens_again(
    two: tuple[State, State], monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    monkeypatch.setattr(ours, "AGAIN_S", 0.05)
    one, other = two
    known = await one.membership(None, None, 0)
    waiting = asyncio.create_task(one.membership(None, known.version, WAIT_S))
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    with psycopg.connect(database) as connection:
        assert len(connection.execute(cut).fetchall()) >= 2
    await register(other)
    assert (await waiting).version > known.version


async def test_a_lost_lease_is_lost_once(two: tuple[State, State], clock: Clock) -> None:
    one, other = two
    await pass_time(clock, LEASE_S + 0.5, one, other)
    told = await kinds(one)
    assert told.count("replica.lost") == 1 and told == await kinds(other)
    for state in two:
        with pytest.raises(LeaseLost):
            await beat(state)
    assert (await register(other)).incarnation == 2


async def test_a_heartbeat_counts_wherever_it_is_taken(
    two: tuple[State, State], clock: Clock
) -> None:
    for turn in range(5):
        await pass_time(clock, LEASE_S / 2, *two)
        await beat(two[turn % 2])
    assert "replica.lost" not in await kinds(two[0])


async def test_whose_heartbeats_were_on_their_way_to_one_that_is_gone_has_time(
    two: tuple[State, State], clock: Clock
) -> None:
    one, other = two
    hello = SyncServiceHello(name="s", address="127.0.0.1:1", instance="x")
    await other.do(services.hello, "s", hello)
    await pass_time(clock, 1.0, one, other)
    await beat(other)
    await pass_time(clock, 1.5 * LEASE_S, one)  # the other one is gone
    assert not {"replica.lost", "sync.lost"} & set(await kinds(one))
    await beat(one)
    await pass_time(clock, LEASE_S + 0.5, one)  # by now it is forgotten
    assert (await kinds(one)).count("replica.lost") == 1


async def test_whose_heartbeats_were_on_their_way_has_time_though_others_are_heard(
    two: tuple[State, State], clock: Clock
) -> None:
    """So it is not silence alone that holds its lease."""
    one, other = two
    await register(one, "b")
    await pass_time(clock, 1.0, one, other)
    await beat(other)
    for _ in range(3):
        await pass_time(clock, LEASE_S / 2, one)  # the other one is gone
        await beat(one, "b")
    assert "replica.lost" not in await kinds(one)
    await beat(one)
    for _ in range(3):
        await pass_time(clock, LEASE_S / 2, one)  # by now it is forgotten
        await beat(one, "b")
    assert (await kinds(one)).count("replica.lost") == 1


async def test_one_that_starts_gives_a_full_lease_although_another_was_there(
    two: tuple[State, State], clock: Clock, database: str
) -> None:
    await pass_time(clock, LEASE_S - 1.0, *two)
    async with await State.open(database, clock=clock) as third:
        await pass_time(clock, LEASE_S - 1.0, *two, third)
        assert "replica.lost" not in await kinds(third)
        await pass_time(clock, 1.5, *two, third)
        assert (await kinds(third)).count("replica.lost") == 1


async def test_all_say_the_same_of_who_they_are_until_one_starts(
    two: tuple[State, State], clock: Clock, database: str
) -> None:
    async def who(*states: State) -> set[str]:
        return {(await state.membership(None, None, 0)).instance for state in states}

    (before,) = await who(*two)
    clock.now += 1.0
    async with await State.open(database, clock=clock) as third:
        (after,) = await who(*two, third)
        assert before and after != before
        await pass_time(clock, 2 * LEASE_S, *two, third)
        assert await who(*two, third) == {after}


async def test_one_that_stands_still_in_the_middle_is_undone_and_does_it_again(
    two: tuple[State, State], database: str
) -> None:
    one, other = two
    inside, go_on = threading.Event(), threading.Event()

    def still(tx: Transaction) -> int:
        runs.create(tx, RunCreate(name="still"))
        inside.set()
        go_on.wait(WAIT_S)
        return len(runs.newest(tx, 10))

    limits = await other.do(lambda tx: [_shown(tx, name) for name in ours.LIMITS])
    assert limits == list(ours.LIMITS.values())
    standing = asyncio.create_task(one.do(still))
    await asyncio.to_thread(inside.wait, WAIT_S)
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state LIKE 'idle in %'"
    with psycopg.connect(database) as connection:  # as the server does by itself, in a while
        assert len(connection.execute(cut).fetchall()) == 1
    await other.do(runs.create, RunCreate(name="s"))
    go_on.set()
    assert await standing == 3


def _shown(tx: Transaction, name: str) -> str:
    return tx.session.execute(text(f"SHOW {name}")).scalar_one()


async def test_nobody_loses_a_lease_while_the_database_is_away(
    two: tuple[State, State], clock: Clock, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "AGAIN_S", 0.05)
    await pass_time(clock, 1.0, *two)
    await beat(two[0])
    postgres.stop()
    try:
        for _ in range(4):
            clock.now += LEASE_S / 2
            for state in two:
                with pytest.raises(Unreachable):
                    await state.review_leases()
                with pytest.raises(Unreachable):
                    await beat(state)
    finally:
        postgres.start()
    for state in two:
        await state.review_leases()
    await pass_time(clock, LEASE_S - 1.0, *two)
    for state in two:
        await beat(state)
        assert not state.writes_fail
    known = await two[0].membership(None, None, 0)
    waiting = asyncio.create_task(two[0].membership(None, known.version, WAIT_S))
    await register(two[1], "b")
    assert (await waiting).version > known.version


async def test_two_that_start_at_once_make_the_tables_once(postgres: Server) -> None:
    database = postgres.database()
    states = await asyncio.gather(*(State.open(database) for _ in range(4)))
    try:
        made = await asyncio.gather(
            *(state.do(runs.create, RunCreate(name="r")) for state in states)
        )
        assert sum(is_new for _, is_new in made) == 1
    finally:
        for state in states:
            await state.close()


async def test_a_lease_is_judged_by_the_servers_clock(postgres: Server) -> None:
    database = postgres.database()
    async with await State.open(database) as state:
        ahead = await state.do(lambda tx: tx.now)
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT EXTRACT(EPOCH FROM clock_timestamp())").fetchone()
    assert found is not None and 0 <= float(found[0]) - ahead < WAIT_S
