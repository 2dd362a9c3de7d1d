"""The line to the control plane: reports that it cannot take are dropped, never sent for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from syncline_proto.rest import EventIn, SyncServiceHello
from syncline_sync import control
from syncline_sync.control import ControlLink, ReportQueue

HELLO = SyncServiceHello(name="sync-0", address="127.0.0.1:1", instance="i")


def event(number: int) -> EventIn:
    return EventIn(kind="test", message=str(number))


def test_reports_that_the_control_plane_fails_at_do_not_hold_up_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "RETRY_S", (0.001, 0.001))
    asked: list[str] = []
    arrived = asyncio.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/reports"):
            raise httpx.ConnectError("away")
        asked.append(request.url.path)
        if "bad" in request.url.path:
            return httpx.Response(500)
        arrived.set()
        return httpx.Response(204)

    async def scenario() -> None:
        reports = ReportQueue()
        reports.put("bad", event(1))
        reports.put("good", event(2))
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(base_url="http://control", transport=transport) as client:

            async def adopt(_: object) -> None:
                raise AssertionError("no membership was told")

            link = ControlLink(client, HELLO, adopt, reports, tmp_path / "membership.json")
            running = asyncio.create_task(link.run())
            try:
                await asyncio.wait_for(arrived.wait(), 60)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
    assert asked == ["/v1/runs/bad/reports"] * control.REPORT_TRIES + ["/v1/runs/good/reports"]


def test_a_full_queue_drops_the_oldest_and_tells_once_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "QUEUE_MAX", 3)

    async def scenario() -> None:
        reports = ReportQueue()
        for number in range(5):
            reports.put("run", event(number))
        assert reports.dropped == 2
        _, batch = await reports.batch()
        assert batch == [event(2), event(3), event(4)]
        assert reports.dropped == 0

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [(line["event"], line.get("count")) for line in logs] == [
        ("too many reports wait; dropping the oldest", None),
        ("reports were dropped", 2),
    ]
