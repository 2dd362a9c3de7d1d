"""The control plane's word counts for each run as soon as that is ready, whatever others need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from syncline_proto.errors import Unreachable
from syncline_proto.rest import Member, Membership, RunMembership, RunState
from syncline_proto.settings import RunSettings
from syncline_sync import host, residence
from syncline_sync.recalled import Recalled
from syncline_sync.run import RunHost
from syncline_testing.service import Service, service

SETTINGS = RunSettings()


def word(version: int, **members: str) -> Membership:
    """These runs, each with its members, whose names are letters."""
    return Membership(
        version=version,
        runs=[
            RunMembership(
                run=run,
                state=RunState.RUNNING,
                settings=SETTINGS,
                settings_version=1,
                members=[Member(replica=name, incarnation=1) for name in names],
            )
            for run, names in members.items()
        ],
    )


def members(s: Service, run: str) -> str:
    return "".join(s.residence.runs[run].members)


class SlowReads:
    """Reads of one run's files stand still until it is opened; all are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run: str) -> None:
        self.under_way, self.open = threading.Event(), threading.Event()
        self.count = 0
        read: Any = Recalled.read

        def slow(store: Any, *args: Any) -> Recalled:
            self.count += 1
            if store.run == run:
                self.under_way.set()
                assert self.open.wait(60)
            return read(store, *args)

        monkeypatch.setattr(Recalled, "read", slow)

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Run it, and let go of what it has left waiting."""
        try:
            asyncio.run(scenario)
        finally:
            self.open.set()


def test_a_run_that_is_long_in_reading_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "MEMBER_WAIT_S", 0.1)
    reads = SlowReads(monkeypatch, "slow")

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            await s.follow(word(1, quick="ab"))
            await s.host.follow(word(2, quick="ac", slow="a"))
            assert members(s, "quick") == "ac"
            assert await s.host.member("quick", "c", 1)
            await asyncio.to_thread(reads.under_way.wait, 60)
            with pytest.raises(Unreachable, match="slow is being read"):
                await s.host.member("slow", "a", 1)
            await s.host.follow(word(3, quick="c", slow="ab", new="a"))
            assert members(s, "quick") == "c" and "slow" not in s.residence.runs
            reads.open.set()
            await s.host.caught_up()
            assert (members(s, "slow"), members(s, "new")) == ("ab", "a"), "by the newest word"
            assert reads.count == 3
            assert not s.faults

    reads.run(scenario())


def test_a_run_that_is_named_no_more_once_it_is_read_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = SlowReads(monkeypatch, "slow")

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            await s.host.follow(word(1, slow="a"))
            await asyncio.to_thread(reads.under_way.wait, 60)
            await s.host.follow(word(2))
            reads.open.set()
            await s.host.caught_up()
            assert s.residence.runs["slow"].ended_at_s is not None
            assert not s.faults

    reads.run(scenario())


def test_runs_about_to_be_served_are_not_put_away_however_long_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be read again, and put away again: none of them would ever be served."""
    keep = RunHost.keep
    monkeypatch.setattr(residence, "ENDED_MAX", 0)
    monkeypatch.setattr(residence, "ENDED_KEPT_S", 0.0)
    reads = SlowReads(monkeypatch, "")

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:

            async def swept_amid(self: RunHost, settings: RunSettings) -> None:
                await s.residence.put_away()
                await keep(self, settings)

            monkeypatch.setattr(RunHost, "keep", swept_amid)
            async with asyncio.timeout(60):
                await s.follow(word(1, one="a", two="a", three="a"))
            assert [members(s, run) for run in ("one", "two", "three")] == ["a"] * 3
            assert reads.count == 3, "each once"
            await s.follow(word(2))
            await s.residence.put_away()
            assert not s.residence.runs and not s.faults

    asyncio.run(scenario())


def test_an_end_in_the_midst_of_a_read_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = SlowReads(monkeypatch, "slow")

    async def scenario() -> None:
        async with service(tmp_path, SETTINGS) as s:
            await s.host.follow(word(1, slow="a", quick="a"))
            await asyncio.to_thread(reads.under_way.wait, 60)
            await s.host.close()
            assert "slow" not in s.residence.runs
            reads.open.set()
        assert not s.faults

    reads.run(scenario())
