"""What is kept aside is taken by its own run alone, and does not stay for ever."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syncline_proto.depot import Depot, Moved
from syncline_proto.errors import CheckpointError, StoreDamaged
from syncline_proto.manifest import Entry
from syncline_proto.owners import Seat
from syncline_proto.rest import Origin
from syncline_sync.aside import KEPT_S, MARK, Aside, sweep_aside
from syncline_sync.pins import Pinned
from syncline_sync.store import RunStore
from syncline_testing.stored import fragment, revision, told

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


class Beginning(set[str]):
    """Runs that are being restored: of every other, a restore begins when it was asked about."""

    def __contains__(self, run: object) -> bool:
        was_there = super().__contains__(run)
        self.add(str(run))
        return was_there


def test_a_restore_that_begins_amid_a_sweep_keeps_its_folder(tmp_path: Path) -> None:
    folder = aside(tmp_path, "next", ORIGIN, whole=False)
    sweep_aside(tmp_path, Beginning())
    assert folder.exists()


def test_what_is_swept_is_out_of_sight_before_its_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins at this moment has all of its files, or hears that it has none."""
    old(aside(tmp_path, "next", ORIGIN))
    removed: list[str] = []
    remove: Callable[..., None] = shutil.rmtree

    def late(folder: Path, **how: Any) -> None:
        with pytest.raises(StoreDamaged, match="was not fetched"):
            held(tmp_path, "next").adopt(NAME)
        remove(folder, **how)
        removed.append(folder.name)

    monkeypatch.setattr(shutil, "rmtree", late)
    sweep_aside(tmp_path)
    assert len(removed) == 1 and not list((tmp_path / "restoring").iterdir())


def test_what_the_disk_does_not_list_is_not_swept_and_ends_nothing(tmp_path: Path) -> None:
    sweep_aside(tmp_path / ("x" * 300))


def fetching(root: Path) -> Callable[[Moved], None]:
    """A fetch of a fragment that a checkpoint holds, to ``root/00000``."""
    source = fragment(root / "source")
    revision(3)(source)
    depot, kept = Depot(str(root / "kept")), source.pin(3, root / "pin")
    name = Pinned(root / "pin", kept).copy(0, depot, lambda _: None)
    entry = Entry(
        fragment=0,
        file=name,
        bytes=kept.bytes,
        crc32c=kept.crc32c,
        revision=3,
        committed_tokens=0,
    )
    place = fragment(root / "00000")
    return lambda moved: held(root, "next").fetch(place, entry, depot, moved)


def test_what_is_fetched_is_what_was_kept(tmp_path: Path) -> None:
    fetching(tmp_path)(lambda _: None)
    assert told(fragment(tmp_path / "00000")) == told(fragment(tmp_path / "source"))
    assert not list(tmp_path.glob("*.fetched"))


def test_a_fetched_file_that_cannot_be_removed_fails_the_restore_alone(tmp_path: Path) -> None:
    def taken_away(_: int) -> None:
        (tmp_path / "00000.fetched").unlink(missing_ok=True)

    said = r"is not restored\. .*00000\.fetched.*, then try again: the runs here go on\.$"
    with pytest.raises(CheckpointError, match=said):
        fetching(tmp_path)(taken_away)


def test_a_fetched_file_that_cannot_be_read_fails_the_restore_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    fetch = fetching(tmp_path)
    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(CheckpointError, match=r"00000\.fetched: Input/output error"):
        fetch(lambda _: None)


def test_what_cannot_be_looked_at_is_not_taken_for_left(tmp_path: Path) -> None:
    """Its mark may say that it is to be adopted."""
    folders = [tmp_path / "restoring" / one / "runs" / "r" for one in ("untold", "left")]
    for folder in folders:
        folder.mkdir(parents=True)
    (folders[0] / MARK).symlink_to(MARK)  # which leads to itself
    sweep_aside(tmp_path)
    assert [folder.exists() for folder in folders] == [True, False]


@pytest.mark.parametrize("link", ["restoring", f"restoring/{ORIGIN.id}"])
def test_what_a_link_leads_to_is_not_swept(tmp_path: Path, link: str) -> None:
    others = aside(tmp_path / "others", "next", ORIGIN, whole=False)
    at = tmp_path / "mine" / link
    at.parent.mkdir(parents=True)
    at.symlink_to(tmp_path / "others" / link)
    sweep_aside(tmp_path / "mine")
    assert others.exists()
    sweep_aside(tmp_path / "others")
    assert not others.exists()
