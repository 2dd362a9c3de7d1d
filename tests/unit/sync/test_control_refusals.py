"""Reports that the control plane answers with a failure: they wait for its database, or are lost.

What is lost is made up for: where the run stands is told anew.
"""

from __future__ import annotations

import asyncio

import httpx
import pytest

from syncline_proto.errors import StoreError
from syncline_proto.reports import EventIn, Reports, Settled
from syncline_proto.rest import Problem
from syncline_sync import calling, control
from syncline_sync.report_queue import ReportQueue
from syncline_testing.linked import link_to, running


def event(number: int) -> EventIn:
    return EventIn(kind="test", message=str(number))


def test_reports_wait_for_a_database_that_fails_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full for minutes costs nothing that was done meanwhile."""
    monkeypatch.setattr(calling, "RETRY_S", (0.001, 0.001))
    full = Problem(title="Store", status=500, detail="The database failed.", code=StoreError.code)
    tries, said = 0, list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        if request.method == "DELETE":
            return httpx.Response(204)
        tries += 1
        if tries <= 5 * control.REPORT_TRIES + 3:
            return httpx.Response(500, content=full.model_dump_json())
        said.extend(one.message for one in Reports.model_validate_json(request.content).events)
        return httpx.Response(204)

    async def scenario() -> None:
        reports, told = ReportQueue(), list[str]()
        async with link_to(answer, reports=reports, tell_anew=told.append) as link:
            for number in range(3):
                reports.put("run", event(number))
            await link.send_last(20)
        assert (said, told, reports.dropped) == (["0", "1", "2"], [], 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [422, 500])
def test_a_run_whose_reports_were_refused_is_told_anew(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what settles later would free data that they say is done."""
    monkeypatch.setattr(calling, "RETRY_S", (0.001, 0.001))
    word = Settled(fragment=0, membership=5)
    said: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            return httpx.Response(204)
        body = Reports.model_validate_json(request.content)
        if any(one.message == "0" for one in body.events):
            return httpx.Response(status)
        said.extend(one.membership for one in body.settled)
        return httpx.Response(204)

    async def scenario() -> None:
        reports, told = ReportQueue(), list[str]()
        async with link_to(answer, reports=reports, tell_anew=told.append) as link:
            reports.put("run", event(0))
            await link.send_last(20)
            assert told == [], "it takes nothing now"
            reports.put("run", word)
            await link.send_last(20)
            reports.put("run", word)
            await link.send_last(20)
        assert (said, told) == ([0, 5], ["run"])

    asyncio.run(scenario())


def test_a_run_of_which_nothing_more_comes_is_told_anew_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have ended, or stand still, while the database failed for too long."""
    monkeypatch.setattr(calling, "RETRY_S", (0.001, 0.001))
    monkeypatch.setattr(control, "HELLO_S", 0.01)
    full = Problem(title="Store", status=500, detail="The database failed.", code=StoreError.code)
    least = control.STORE_PATIENCE * control.REPORT_TRIES
    tries, room = 0, False

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        if request.method == "PUT":
            return httpx.Response(204 if room else 503)
        if request.method == "POST":
            tries += 1
            return httpx.Response(500, content=full.model_dump_json())
        return httpx.Response(503)

    async def scenario() -> None:
        nonlocal room
        reports, told, anew = ReportQueue(), list[str](), asyncio.Event()

        def tell(run: str) -> None:
            told.append(run)
            anew.set()

        reports.put("run", event(0))
        async with link_to(answer, reports=reports, tell_anew=tell) as link, running(link):
            while not reports.dropped:
                await asyncio.sleep(0.01)
            assert (told, tries) == ([], least), "it takes nothing now"
            room = True
            async with asyncio.timeout(20):
                await anew.wait()
        assert (told, tries) == (["run"], least)

    asyncio.run(scenario())
