"""A push that is told of its room: whoever ends it meanwhile waits for that, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from syncline_proto.errors import Unreachable
from syncline_sync.receiving import Part, Receiving, _tell_room


class Line:
    """A call's context whose line takes nothing before it may."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may, self.was_told, self._error = asyncio.Event(), False, error

    async def send_initial_metadata(self, _: object) -> None:
        await self.may.wait()
        if self._error is not None:
            raise self._error
        self.was_told = True


def test_who_ends_a_call_waits_until_its_room_has_been_told() -> None:
    """gRPC takes no status before: the client would get no answer at all."""

    async def scenario() -> None:
        line: Any = Line()
        telling = asyncio.create_task(_tell_room(line))
        for _ in range(2):  # a rank that began anew, and its lease that ended then
            await asyncio.sleep(0)
            telling.cancel()
            await asyncio.wait({telling}, timeout=0.01)
            assert not telling.done()
        line.may.set()
        with pytest.raises(asyncio.CancelledError):
            await telling
        assert line.was_told

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [None, RuntimeError("the client has gone")])
def test_what_comes_of_telling_is_passed_on(error: Exception | None) -> None:
    async def scenario() -> None:
        line: Any = Line(error)
        line.may.set()
        if error is None:
            await _tell_room(line)
            assert line.was_told
        else:
            with pytest.raises(RuntimeError, match="gone"):
                await _tell_room(line)

    asyncio.run(scenario())


def test_a_push_that_ends_while_its_chunks_are_waited_for_is_read_no_more() -> None:
    """Its stream is closed at once after it, which none can be while it is read."""

    async def nothing() -> AsyncGenerator[Part]:
        for part in ():
            yield part
        await asyncio.Event().wait()

    async def scenario() -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        granted.set_exception(Unreachable("there is no room any more"))
        staged: Any = SimpleNamespace(reservation=SimpleNamespace(granted=granted))
        none: Any = None
        shard: Any = SimpleNamespace(elements=1)
        receiving = Receiving(none, none, none, staged, shard, none)
        with pytest.raises(Unreachable, match="no room"):
            async with aclosing(nothing()) as parts:
                await receiving.receive(parts, none)

    asyncio.run(scenario())
