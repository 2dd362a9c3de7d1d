"""Long lists: without what is long, one at a time, and written beside the loop."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest
from pydantic import BaseModel, field_serializer

from syncline_control.routes.listing import Listing
from syncline_testing.control import on_both, with_replicas
from syncline_testing.queries import queries_of

pytestmark = pytest.mark.anyio

JOB = {"text": "a" * 1_000}


@on_both
async def test_a_job_is_read_where_one_run_is_asked_for_and_nowhere_else(
    api: httpx.AsyncClient,
) -> None:
    assert (await api.post("/v1/runs", json={"name": "r", "job": JOB})).status_code == 201
    await with_replicas(api, "a")
    with queries_of("runs.job") as seen:
        (listed,) = (await api.get("/v1/runs")).json()
        beat = {"incarnation": 1}
        assert (await api.post("/v1/runs/r/replicas/a/heartbeat", json=beat)).is_success
        for path in ("/metrics", "/v1/membership?wait_s=0", "/v1/runs/r/replicas"):
            assert (await api.get(path)).is_success
    assert seen == []
    assert "job" not in listed
    shown = (await api.get("/v1/runs/r")).json()
    assert shown == {**listed, "job": JOB}


class Slow(BaseModel):
    """Tells which thread wrote it down."""

    thread: int = 0

    @field_serializer("thread")
    def written_by(self, _value: int) -> int:
        return threading.get_ident()


async def test_lists_are_read_one_at_a_time_and_written_beside_the_loop() -> None:
    listing = Listing()
    under_way, most = 0, 0

    async def read() -> list[Slow]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return [Slow(), Slow()]

    answers = await asyncio.gather(*(listing.answer(read) for _ in range(5)))
    assert most == 1
    assert str(threading.get_ident()).encode() not in b"".join(bytes(a.body) for a in answers)


async def test_who_hangs_up_leaves_its_turn_to_the_next() -> None:
    listing, never = Listing(), asyncio.Event()

    async def read() -> list[Slow]:
        await never.wait()
        return []

    async def none() -> list[Slow]:
        return []

    first = asyncio.create_task(listing.answer(read))
    await asyncio.sleep(0)
    first.cancel()
    assert (await listing.answer(none)).body == b"[]"
