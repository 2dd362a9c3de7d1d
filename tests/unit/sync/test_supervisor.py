"""A service that cannot stay up ends all that one command keeps; one that falls at times may."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from syncline_proto.errors import PortInUse, ProcessFailed, StoreError
from syncline_sync import supervisor
from syncline_sync.settings import SyncSettings
from syncline_sync.supervisor import DEATHS_MAX, ChildFailed, supervise

KILLED = -9


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of services of which the second dies at once, until its disk refuses in its twelfth life:
    whose life it is, in order, and "end" where one was ended."""
    told: list[str] = []

    async def one_life(settings: SyncSettings) -> int:
        told.append(settings.own_name)
        if settings.index == 1:
            return StoreError.exit_code if told.count("sync-1") == 12 else KILLED
        try:
            await asyncio.Event().wait()
        finally:
            told.append("end")
        return 0

    monkeypatch.setattr(supervisor, "_one_life", one_life)
    monkeypatch.setattr(supervisor, "PAUSE_S", 0.0)
    return told


def failed(folder: Path) -> ChildFailed:
    with pytest.raises(ChildFailed) as failure:
        asyncio.run(supervise(SyncSettings(data=folder, shards=2)))
    return failure.value


def test_the_sixth_death_within_a_minute_ends_all(lives: list[str], tmp_path: Path) -> None:
    failure = failed(tmp_path)
    assert lives == ["sync-0", *["sync-1"] * (DEATHS_MAX + 1), "end"]
    assert "sync-1 ended 6 times within 60 s (exit code -9)" in failure.message
    assert failure.ended_with == ProcessFailed.exit_code == 60


def test_deaths_that_lie_further_apart_do_not(
    lives: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "DEATHS_WITHIN_S", 0.0)
    assert failed(tmp_path).ended_with == StoreError.exit_code
    assert lives == ["sync-0", *["sync-1"] * 12, "end"]


@pytest.mark.parametrize("index", [0, 1])
def test_who_did_not_choose_a_port_that_is_taken_hears_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    async def one_life(settings: SyncSettings) -> int:
        return PortInUse.exit_code if settings.index == index else await asyncio.Future[int]()

    monkeypatch.setattr(supervisor, "_one_life", one_life)
    failure = failed(tmp_path)
    assert failure.ended_with == PortInUse.exit_code
    said = f"sync-{index} ended with exit code 11; its words are above."
    more = " Its ports are 10 above those of the service before it." if index else ""
    assert failure.message == said + more


def told_to_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *ends: str
) -> signal.Signals | ChildFailed:
    """What comes of SIGTERM once two services are up, the first of which does this at its own."""
    child = folder / "child"
    child.write_text(
        "#!/bin/sh\n"
        f'if [ "$SYNCLINE_SYNC_INDEX" = 0 ]; then trap "{" ".join(ends)}" TERM; fi\n'
        'touch "$SYNCLINE_SYNC_DATA.up"\n'
        "while :; do sleep 0.05; done\n"
    )
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))

    async def ended() -> signal.Signals:
        (folder / "data").mkdir()
        keeping = asyncio.create_task(supervise(SyncSettings(data=folder / "data", shards=2)))
        while not keeping.done() and len([*(folder / "data").glob("*.up")]) < 2:
            await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)
        return await keeping

    try:
        return asyncio.run(ended())
    except ChildFailed as failure:
        return failure


def test_services_that_end_well_end_the_command_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told_to_end(tmp_path, monkeypatch, "exit", "0") is signal.SIGTERM


def test_what_a_service_says_at_its_end_is_the_commands_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = told_to_end(tmp_path, monkeypatch, "exit", str(StoreError.exit_code))
    assert isinstance(failure, ChildFailed)
    assert failure.message == "sync-0 ended with exit code 40; its words are above."
    assert failure.ended_with == StoreError.exit_code


def test_a_service_that_does_not_end_is_killed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_S", 0.5)
    failure = told_to_end(tmp_path, monkeypatch, ":")
    assert isinstance(failure, ChildFailed)
    assert failure.message.startswith("sync-0 did not end within 0.5 s, and was killed.")
    assert failure.ended_with == ProcessFailed.exit_code


def test_a_service_that_ended_just_before_it_was_told_to_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tells it must not take the exit code away from asyncio, which would make it 255."""
    waitpid, may_look = os.waitpid, threading.Event()

    def late(pid: int, options: int) -> tuple[int, int]:
        may_look.wait()
        return waitpid(pid, options)

    monkeypatch.setattr(os, "waitpid", late)

    async def ended() -> int | None:
        child = await asyncio.create_subprocess_exec("true")
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        asyncio.get_running_loop().call_soon(may_look.set)
        await supervisor._end(child, "sync-0")
        return child.returncode

    assert asyncio.run(ended()) == 0
