"""Memberships: asked for, kept before they count, and passed over where they are damaged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from syncline_proto.errors import StoreDamaged
from syncline_proto.rest import Membership, Problem
from syncline_sync import control
from syncline_sync.files import SEAL
from syncline_testing.linked import link_to, running


def test_who_answers_a_long_poll_at_once_is_not_asked_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "QUIET_S", 3600.0)
    polls: list[str] = []
    told = asyncio.Event()
    word = Membership(version=1, runs=[])

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/membership":
            polls.append(request.url.query.decode())
            if len(polls) >= 2:
                told.set()
        return httpx.Response(200, content=word.model_dump_json())

    async def scenario() -> None:
        async def adopt(_: Membership) -> None:
            pass

        snapshot = tmp_path / "membership.json"
        async with link_to(answer, adopt, snapshot=snapshot) as link, running(link):
            await asyncio.wait_for(told.wait(), 60)
            for _ in range(1000):  # as often as the loop could ask again
                await asyncio.sleep(0)

    asyncio.run(scenario())
    assert polls == ["after=0&wait_s=0", f"after=1&wait_s={control.POLL_S:g}"]


def test_a_membership_is_kept_before_it_counts(tmp_path: Path) -> None:
    """Or a service that is killed in between would fence who has just come, once it is back."""
    snapshot = tmp_path / "membership.json"
    kept = asyncio.Queue[str]()
    word = Membership(version=1, runs=[])

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=word.model_dump_json())

    async def scenario() -> None:
        async def adopt(_: Membership) -> None:
            kept.put_nowait(SEAL.open(snapshot.read_bytes()) if snapshot.exists() else "nothing")

        async with link_to(answer, adopt, snapshot=snapshot) as link, running(link):
            assert await asyncio.wait_for(kept.get(), 60) == word.model_dump_json()

    asyncio.run(scenario())


def test_who_is_refused_is_not_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose --shards are not those of the others, until these have gone."""
    monkeypatch.setattr(control, "HELLO_S", 0.0)
    snapshot, hellos, polls = tmp_path / "membership.json", 0, 0
    no = Problem(type="about:blank", title="Conflict", status=409, code="RUN_CONFLICT", detail="no")

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal hellos, polls
        if request.url.path == "/v1/membership":
            polls += 1
            return httpx.Response(200, content=Membership(version=1, runs=[]).model_dump_json())
        hellos += 1
        if polls and hellos > 3:
            return httpx.Response(200)
        return httpx.Response(409, content=no.model_dump_json())

    async def scenario() -> None:
        arrived = asyncio.Event()

        async def adopt(_: Membership) -> None:
            arrived.set()

        async with link_to(answer, adopt, snapshot=snapshot) as link, running(link):
            await asyncio.wait_for(arrived.wait(), 60)

    with capture_logs() as logs:
        asyncio.run(scenario())
    said = [line["event"] for line in logs]
    assert said.count("connected to the control plane") == 1
    assert said.count("control plane refused") >= 3
    assert said[-1] == "connected to the control plane"


CHANGED = SEAL.close(Membership(version=1, runs=[]).model_dump_json()).decode()
"""A bit of it is another: it says what nobody has said."""
CHANGED = CHANGED.replace('"version":1', '"version":3')


@pytest.mark.parametrize("kept", ["", '{"version": "soon"}', "[" * 100_000, CHANGED, "folder"])
def test_a_damaged_membership_is_passed_over_with_one_line(tmp_path: Path, kept: str) -> None:
    """It is a cache: the control plane knows better. But it must be one that can be written."""
    snapshot = tmp_path / "membership.json"
    if kept == "folder":
        snapshot.mkdir()
    else:
        snapshot.write_text(kept)
    adopted: list[Membership] = []
    word = Membership(version=1, runs=[])

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=word.model_dump_json())

    async def scenario() -> None:
        arrived = asyncio.Event()

        async def adopt(membership: Membership) -> None:
            adopted.append(membership)
            arrived.set()

        async with link_to(answer, adopt, snapshot=snapshot) as link:
            await link.adopt_snapshot()
            assert adopted == []
            async with running(link) as ended:
                if kept == "folder":
                    with pytest.raises(
                        StoreDamaged, match=r"membership\.json is a folder; move it"
                    ):
                        await asyncio.wait_for(ended, 60)
                else:
                    await asyncio.wait_for(arrived.wait(), 60)

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert adopted[:1] == ([] if kept == "folder" else [word])
    said = [line["event"] for line in logs]
    assert said == ["the last membership is damaged", "connected to the control plane"]


def test_who_is_refused_has_no_part_in_the_runs_until_it_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it found to be wrong with them would be told of, and be nobody's fault."""
    monkeypatch.setattr(control, "HELLO_S", 0.01)
    problem = {"title": "Conflict", "status": 409, "detail": "Give all the same --shards."}
    hellos: list[str] = []

    async def scenario() -> None:
        adopted, is_taken = asyncio.Event(), asyncio.Event()

        def answer(request: httpx.Request) -> httpx.Response:
            if request.method == "GET":
                return httpx.Response(200, json=Membership(version=1, runs=[]).model_dump())
            hellos.append(request.method)
            if is_taken.is_set():
                return httpx.Response(200, json={"lease_s": 10.0})
            return httpx.Response(409, json=problem | {"code": "RUN_CONFLICT"})

        async def adopt(_: Membership) -> None:
            assert is_taken.is_set()
            adopted.set()

        file = tmp_path / "membership.json"
        with capture_logs() as logs:
            async with link_to(answer, adopt, snapshot=file) as link, running(link):
                while len(hellos) < 5:
                    await asyncio.sleep(0.001)
                assert not (adopted.is_set() or file.exists())
                is_taken.set()
                await asyncio.wait_for(adopted.wait(), 20)
        assert {"Give all the same --shards."} == {line["why"] for line in logs if "why" in line}

    asyncio.run(scenario())
