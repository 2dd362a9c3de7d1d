"""What is kept aside is taken by its own run alone, and does not stay for ever."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from syncline_proto.errors import StoreDamaged
from syncline_proto.rest import Origin
from syncline_sync.aside import KEPT_S, MARK, Aside, sweep_aside
from syncline_sync.files import sealed
from syncline_sync.store import RunStore

ORIGIN = Origin(checkpoint="/kept/first-r3", id="0" * 32, revision=3)
OTHER = ORIGIN.model_copy(update={"id": "1" * 32})


def aside(root: Path, run: str, origin: Origin | None) -> Path:
    """A run's folder aside; whole if it says which checkpoint it is of."""
    folder = RunStore(root / "restoring", run).folder
    folder.mkdir(parents=True)
    if origin is not None:
        (folder / MARK).write_bytes(sealed(json.dumps({"id": origin.id})))
    return folder


def test_it_is_put_in_its_place_once(tmp_path: Path) -> None:
    folder = aside(tmp_path, "next", ORIGIN)
    assert Aside(tmp_path, "next").adopt(ORIGIN) is True
    assert not folder.exists() and (tmp_path / "runs" / "next" / MARK).exists()
    assert Aside(tmp_path, "next").adopt(ORIGIN) is False
    with pytest.raises(StoreDamaged, match="first-r3"):
        Aside(tmp_path, "next").adopt(OTHER)


@pytest.mark.parametrize("there", [None, OTHER], ids=["torn", "another"])
def test_nothing_else_is_taken_for_it(tmp_path: Path, there: Origin | None) -> None:
    aside(tmp_path, "next", there)
    with pytest.raises(StoreDamaged, match="restore the checkpoint"):
        Aside(tmp_path, "next").adopt(ORIGIN)
    assert not (tmp_path / "runs" / "next").exists()


def test_a_run_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    aside(tmp_path, "next", ORIGIN)
    kept = RunStore(tmp_path, "next").folder / "run.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("theirs")
    with pytest.raises(StoreDamaged):
        Aside(tmp_path, "next").adopt(ORIGIN)
    assert kept.read_text() == "theirs"


def test_what_nobody_comes_for_is_swept(tmp_path: Path) -> None:
    torn, new, old, busy = (
        aside(tmp_path, run, origin)
        for run, origin in (("torn", None), ("new", ORIGIN), ("old", ORIGIN), ("busy", None))
    )
    long_ago = (old / MARK).stat().st_mtime - KEPT_S - 1
    os.utime(old / MARK, (long_ago, long_ago))
    sweep_aside(tmp_path, {"busy"})
    assert [folder.exists() for folder in (torn, new, old, busy)] == [False, True, False, True]
