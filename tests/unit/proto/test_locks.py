"""A lock file has one owner, and is free again once he is gone."""

from __future__ import annotations

from pathlib import Path

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


def test_what_cannot_be_made_is_no_lock(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        owned(tmp_path / "nowhere" / "lock")
