"""Operations that share a commit: each stands or falls alone, and nobody is told before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from syncline_control.operations import events, runs
from syncline_control.state import BATCH_MAX, State
from syncline_control.transaction import Transaction
from syncline_proto.errors import RunConflict, StoreError
from syncline_proto.rest import RunCreate
from syncline_testing.control import on_both

pytestmark = [pytest.mark.anyio, on_both]


class Torn(BaseException):
    """What no operation is expected to raise, so it tears the whole batch."""


def create(tx: Transaction, name: str, then: BaseException | str | None = None) -> None:
    """Create a run, and then fail: with an error, or with a statement that is none."""
    runs.create(tx, RunCreate(name=name))
    if isinstance(then, BaseException):
        raise then
    if then is not None:
        tx.session.execute(text(then))


async def together(state: State, *jobs: tuple[str, BaseException | str | None]) -> list[Any]:
    """Ask for all of them before the database's thread has answered the first."""
    asked = [asyncio.create_task(state.do(create, name, then)) for name, then in jobs]
    return await asyncio.gather(*asked, return_exceptions=True)


async def names(state: State) -> set[str]:
    return {run.name for run in await state.do(runs.newest, 1000)}


@pytest.mark.parametrize(
    ("then", "told"),
    [(RunConflict("No."), RunConflict), (ZeroDivisionError(), ZeroDivisionError)]
    + [("no statement", StoreError)],
)
async def test_who_fails_is_undone_alone(
    state: State, then: Exception | str, told: type[Exception]
) -> None:
    answers = await together(state, ("a", None), ("b", None), ("bad", then), ("c", None))
    assert [type(one) for one in answers] == [type(None), type(None), told, type(None)]
    assert await names(state) == {"a", "b", "c"}
    said = [event.message for event in await state.do(events.listed, None, None, 100)]
    assert said == [f"Run {name} was created." for name in ("a", "b", "c")]
    assert state.event_counts["run.created"] == 3


async def test_a_batch_that_is_torn_leaves_nobody_waiting(state: State) -> None:
    many = [(f"r{i}", None) for i in range(BATCH_MAX)]
    answers = await together(state, ("a", None), ("bad", Torn()), *many)
    # The first goes alone; the next turn is torn as a whole; the last one waited behind it.
    torn = [type(one) is Torn for one in answers]
    assert torn == [False] + [True] * BATCH_MAX + [False]
    assert await names(state) == {"a", many[-1][0]}
    assert await state.do(create, "after") is None


async def test_more_than_a_batch_is_done_in_order(state: State) -> None:
    many = [(f"r{i}", None) for i in range(2 * BATCH_MAX + 3)]
    assert await together(state, *many) == [None] * len(many)
    newest = [run.name for run in await state.do(runs.newest, 1000)]
    assert newest[::-1] == [name for name, _ in many]


async def test_closing_finishes_what_was_asked_for(state: State, database: str) -> None:
    asked = asyncio.create_task(together(state, *((f"r{i}", None) for i in range(BATCH_MAX + 1))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await state.close()
    assert await asked == [None] * (BATCH_MAX + 1)
    async with await State.open(database) as again:
        assert len(await names(again)) == BATCH_MAX + 1
