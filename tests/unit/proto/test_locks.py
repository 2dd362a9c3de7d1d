"""A lock file has one owner, and is free again once that is gone."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

import pytest

from syncline_proto.locks import owned


def test_there_is_one_owner_until_he_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = owned(path)
    assert first is not None
    assert owned(path) is None
    first.close()
    second = owned(path)
    assert second is not None
    second.close()


def test_a_file_that_its_owner_takes_away_is_nobodys_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes, and another is made and owned, between opening the first and locking it."""
    path, flock = tmp_path / "lock", fcntl.flock
    first = owned(path)
    assert first is not None

    def amid(*how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        first.close()
        later.append(owned(path))
        flock(*how)

    later: list[IO[bytes] | None] = []
    monkeypatch.setattr(fcntl, "flock", amid)
    assert owned(path) is None
    (second,) = later
    assert second is not None
    second.close()


def test_what_cannot_be_made_is_no_lock(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        owned(tmp_path / "nowhere" / "lock")
