"""What is kept aside is taken by its own run alone, and does not stay for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from syncline_proto.errors import StoreDamaged
from syncline_proto.owners import Seat
from syncline_proto.rest import Origin
from syncline_sync.aside import KEPT_S, MARK, Aside, sweep_aside
from syncline_sync.store import RunStore

ORIGIN = Origin(checkpoint="/kept/first-r3", id="0" * 32, revision=3)
NAME = ORIGIN.checkpoint
OTHER = ORIGIN.model_copy(update={"id": "1" * 32})


SEAT = Seat(1, 3)


def held(root: Path, run: str, origin: Origin = ORIGIN, seat: Seat = SEAT) -> Aside:
    return Aside(root, run, origin.id, seat)


def aside(root: Path, run: str, origin: Origin, *, whole: bool = True) -> Path:
    """What a restore has left there; whole, if it came to its end."""
    one = held(root, run, origin)
    folder = RunStore(root / "restoring" / origin.id, run).folder
    folder.mkdir(parents=True)
    if whole:
        one.finish()
    return folder


def test_it_is_put_in_its_place_once(tmp_path: Path) -> None:
    folder = aside(tmp_path, "next", ORIGIN)
    assert held(tmp_path, "next").adopt(NAME) is True
    assert not folder.exists() and (tmp_path / "runs" / "next" / MARK).exists()
    assert not list((tmp_path / "restoring").iterdir())
    assert held(tmp_path, "next").adopt(NAME) is False
    with pytest.raises(StoreDamaged, match="first-r3"):
        held(tmp_path, "next", OTHER).adopt(NAME)


@pytest.mark.parametrize("there", ["torn", "another", "another seat's"])
def test_nothing_else_is_taken_for_it(tmp_path: Path, there: str) -> None:
    """A service that is another of as many, or of others, has not fetched what it owns now."""
    folder = aside(tmp_path, "next", OTHER if there == "another" else ORIGIN, whole=there != "torn")
    wanted = held(tmp_path, "next", seat=Seat(0, 1) if there == "another seat's" else SEAT)
    assert not wanted.keep()
    with pytest.raises(StoreDamaged, match="restore the checkpoint"):
        wanted.adopt(NAME)
    assert not (tmp_path / "runs" / "next").exists() and folder.exists()


def test_a_run_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    aside(tmp_path, "next", ORIGIN)
    kept = RunStore(tmp_path, "next").folder / "run.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("theirs")
    with pytest.raises(StoreDamaged):
        held(tmp_path, "next").adopt(NAME)
    assert kept.read_text() == "theirs"


def test_one_name_from_two_checkpoints_is_begun_from_the_one_that_is_named(tmp_path: Path) -> None:
    """Neither restore takes away what the other has fetched."""
    for origin in (ORIGIN, OTHER):
        aside(tmp_path, "next", origin)
    held(tmp_path, "next", OTHER).drop()
    assert held(tmp_path, "next").keep()
    assert held(tmp_path, "next").adopt(NAME) is True


def old(folder: Path) -> Path:
    long_ago = (folder / MARK).stat().st_mtime - KEPT_S - 1
    os.utime(folder / MARK, (long_ago, long_ago))
    return folder


def test_what_nobody_comes_for_is_swept(tmp_path: Path) -> None:
    busy, torn = (aside(tmp_path, run, ORIGIN, whole=False) for run in ("busy", "torn"))
    new = aside(tmp_path, "new", ORIGIN)
    gone, wanted = (old(aside(tmp_path, run, OTHER)) for run in ("gone", "wanted"))
    assert held(tmp_path, "wanted", OTHER).keep(), "whoever asks for it keeps it"
    sweep_aside(tmp_path, {"busy"})
    folders = [folder.exists() for folder in (torn, gone, busy, new, wanted)]
    assert folders == [False, False, True, True, True]
    old(wanted)
    sweep_aside(tmp_path)
    assert [folder.exists() for folder in (busy, new, wanted)] == [False, True, False]
    assert [folder.name for folder in (tmp_path / "restoring").iterdir()] == [ORIGIN.id]
