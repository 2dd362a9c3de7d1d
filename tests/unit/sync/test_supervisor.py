"""A service that cannot stay up ends all that one command keeps; one that falls at times may."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from syncline_proto.errors import ProcessFailed, StoreError
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
