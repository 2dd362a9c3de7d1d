"""When reports go: those of a round together, once no values move, and never kept for ever."""

from __future__ import annotations

import asyncio
import time

import pytest

from syncline_proto.reports import EventIn
from syncline_sync import report_queue
from syncline_sync.lull import Lull
from syncline_sync.report_queue import ReportQueue, Told


def event(number: int) -> EventIn:
    return EventIn(kind="test", message=str(number))


def test_reports_of_a_round_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_queue, "FLUSH_S", 2.0)
    monkeypatch.setattr(report_queue, "FLUSH_MAX_S", 600.0)

    async def scenario() -> list[Told]:
        reports = ReportQueue()
        batch = asyncio.create_task(reports.batch())
        for number in range(5):
            reports.put("one", event(number))
            await asyncio.sleep(0.05)
        return (await batch)[1]

    assert asyncio.run(scenario()) == [event(number) for number in range(5)]


def test_reports_wait_while_values_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_queue, "FLUSH_S", 0.0)
    monkeypatch.setattr(report_queue, "FLUSH_MAX_S", 600.0)

    async def scenario() -> None:
        lull = Lull()
        reports = ReportQueue(lull=lull)
        reports.put("one", event(1))
        lull.moved()
        batch = asyncio.create_task(reports.batch())
        for _ in range(50):
            await asyncio.sleep(0)
            lull.moved()
            assert not batch.done()
        assert (await batch)[1] == [event(1)]
        assert time.monotonic() >= lull.begins_s

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_reports_do_not_wait_for_ever_for_values_that_always_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_queue, "FLUSH_MAX_S", 0.2)

    async def scenario() -> None:
        lull = Lull()
        reports = ReportQueue(lull=lull)
        reports.put("one", event(1))
        batch = asyncio.create_task(reports.batch())
        while not batch.done():
            lull.moved()
            await asyncio.sleep(0.01)
        assert (await batch)[1] == [event(1)]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_reports_that_keep_coming_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_queue, "FLUSH_S", 600.0)
    monkeypatch.setattr(report_queue, "FLUSH_MAX_S", 0.2)

    async def scenario() -> None:
        reports = ReportQueue()
        batch = asyncio.create_task(reports.batch())
        while not batch.done():
            reports.put("one", event(1))
            await asyncio.sleep(0.01)
        assert (await batch)[1]

    asyncio.run(asyncio.wait_for(scenario(), 60))
