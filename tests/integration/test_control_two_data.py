"""Leased data through two control planes on one PostgreSQL database: given once each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from syncline_control.operations import data, replicas, reports, runs
from syncline_control.state import State
from syncline_proto.leased import DataAsk, Dataset
from syncline_proto.ranges import NOTHING, Ranges, common, count, joined, split, without
from syncline_proto.reports import ContributionView, Reports, RoundReport
from syncline_proto.rest import ReplicaRegister, RunCreate
from syncline_testing.control import Clock
from syncline_testing.postgres import Server

pytestmark = pytest.mark.anyio

DATASET = Dataset(sequences=30, seed=7, content="abc")
FRAGMENTS = 2
TURNS = 20


@pytest.fixture
async def two(postgres: Server, clock: Clock) -> AsyncIterator[tuple[State, State]]:
    """Both have a run r of replicas a and b."""
    database = postgres.database()
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(await State.open(database, clock=clock))
            for _ in range(2)
        ]
        await one.do(runs.create, RunCreate(name="r"))
        for name in "ab":
            await other.do(replicas.register, "r", ReplicaRegister(replica=name))
        yield one, other


@dataclass
class Reader:
    """A replica that asks now the one, now the other."""

    name: str
    two: tuple[State, State]
    draw: random.Random
    after: int = 0
    holds: Ranges = NOTHING
    given: Ranges = NOTHING
    """All that it holds, or that it had pushed."""

    def _any(self) -> State:
        return self.draw.choice(self.two)

    async def takes_a_turn(self) -> None:
        act = self.draw.choice([self.asks, self.asks, self.gives_back, self.pushes])
        await act()

    async def asks(self) -> None:
        ask = DataAsk(incarnation=1, dataset=DATASET, want=self.draw.randint(1, 9))
        ask.after = self.after
        grant = await self._any().do(data.ask, "r", self.name, ask)
        if self.draw.random() < 0.3:  # no answer has come, so it asks the other one, too
            grant = await self._any().do(data.ask, "r", self.name, ask)
        ranges = tuple(grant.ranges)
        assert not common(ranges, self.given), "it has that already"
        self.after, self.holds = grant.number, joined(self.holds, ranges)
        self.given = joined(self.given, ranges)

    async def gives_back(self) -> None:
        back, self.holds = split(self.holds, min(2, count(self.holds)))
        ask = DataAsk(incarnation=1, dataset=DATASET, after=self.after, returned=list(back))
        self.given = without(self.given, back)
        await self._any().do(data.ask, "r", self.name, ask)

    async def pushes(self) -> None:
        """Every fragment tells it, at any of the two, and some tell it twice."""
        pushed, self.holds = split(self.holds, min(5, count(self.holds)))
        told = [self._round(fragment, pushed) for fragment in range(FRAGMENTS)]
        at = [self._any() for _ in (*told, *told[:1])]
        await asyncio.gather(
            *(
                state.do(reports.add, "r", Reports(rounds=[one]))
                for state, one in zip(at, (*told, *told[:1]), strict=True)
            )
        )

    def _round(self, fragment: int, pushed: Ranges) -> RoundReport:
        mine = ContributionView(
            replica=self.name, incarnation=1, verdict="accepted", weight=1.0, data=list(pushed)
        )
        return RoundReport(
            fragment=fragment,
            fragment_name=f"block {fragment}",
            kind="pseudo-gradient",
            revision=next(NUMBERS),
            committed_at=1000.0,
            seconds=0.5,
            fragments=FRAGMENTS,
            contributions=[mine],
        )


NUMBERS = iter(range(1, 1_000_000))


async def test_each_sequence_is_given_once_whichever_of_the_two_is_asked(
    two: tuple[State, State],
) -> None:
    draw = random.Random(5)
    a, b = readers = [Reader(name, two, draw) for name in "ab"]
    for _ in range(TURNS):
        await asyncio.gather(*(reader.takes_a_turn() for reader in readers))
        assert not common(a.given, b.given), "two were given the same"
        for state in two:
            view = await state.do(data.view, "r")
            held = {one.replica: one.sequences for one in view.holders}
            assert held == {r.name: count(r.holds) for r in readers if r.holds}
            assert view.trained == count(joined(a.given, b.given)) - sum(held.values())
    view = await two[0].do(data.view, "r")
    assert view.trained > DATASET.sequences, "beyond the first epoch"
