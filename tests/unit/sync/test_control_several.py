"""The line to a control plane that has several addresses, or is away behind one of them."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from syncline_proto.reports import EventIn
from syncline_sync import calling, control
from syncline_sync.report_queue import ReportQueue
from syncline_testing.linked import link_to, running

EVENT = EventIn(kind="test", message="said")


@pytest.mark.parametrize("away", [httpx.ConnectError("away"), 503, httpx.ReadTimeout("silent")])
def test_of_several_addresses_the_next_is_asked_where_one_is_away(
    monkeypatch: pytest.MonkeyPatch, away: Exception | int
) -> None:
    monkeypatch.setattr(calling, "RETRY_S", (0.001, 0.001))
    asked: list[str] = []

    async def scenario() -> None:
        arrived = asyncio.Event()

        def answer(request: httpx.Request) -> httpx.Response:
            if request.url.host == "one":
                if isinstance(away, Exception):
                    raise away
                return httpx.Response(away)
            if not request.url.path.endswith("/reports"):
                raise httpx.ConnectError("away")
            asked.append(str(request.url))
            arrived.set()
            return httpx.Response(204)

        reports = ReportQueue()
        reports.put("run", EVENT)
        urls = "http://one:1,http://two:2/below"
        async with link_to(answer, reports=reports, url=urls) as link, running(link):
            await asyncio.wait_for(arrived.wait(), 60)

    asyncio.run(scenario())
    assert asked == ["http://two:2/below/v1/runs/run/reports"]


def test_reports_wait_for_a_control_plane_that_asks_for_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calling, "RETRY_S", (0.001, 0.001))

    async def scenario() -> int:
        arrived, asked = asyncio.Event(), 0

        def answer(request: httpx.Request) -> httpx.Response:
            nonlocal asked
            if not request.url.path.endswith("/reports"):
                raise httpx.ConnectError("away")
            asked += 1
            if asked <= 2 * control.REPORT_TRIES:
                return httpx.Response(503)
            arrived.set()
            return httpx.Response(204)

        reports = ReportQueue()
        reports.put("run", EVENT)
        async with link_to(answer, reports=reports) as link, running(link):
            await asyncio.wait_for(arrived.wait(), 60)
        return asked

    assert asyncio.run(scenario()) == 2 * control.REPORT_TRIES + 1
