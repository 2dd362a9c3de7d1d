"""A push that is told of its room: whoever ends it meanwhile waits for that, and no longer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from syncline_sync.receiving import _tell_room


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
