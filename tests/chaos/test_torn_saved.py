"""A power cut amid a save into a directory: what is listed afterwards is whole, or is not there.

And what was said to be saved is there, in folders that the save made itself, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from chaos.disk import Disk, cuts
from chaos.test_torn_back import manifest_of, pinned
from syncline.launch.kept import Kept, listed
from syncline_proto.depot import Depot
from syncline_proto.errors import CheckpointError
from syncline_proto.manifest import Manifest
from syncline_sync.checkpoints import _seal, _see_free
from syncline_sync.pins import Pinned

FOLDERS = "backups/of/mine"
"""None of them is there before."""

Step = Callable[[Path], object]


def nothing(_: int) -> None:
    """Who follows no bytes."""


def depot(root: Path) -> Depot:
    return Depot(f"{root}/{FOLDERS}/one")


def steps_of(pins: list[Pinned], manifest: Manifest) -> list[Step]:
    """A save, below a root: of each fragment, as its service copies it, and of the manifest."""

    def copy(fragment: int, root: Path) -> None:
        pins[fragment].copy(fragment, depot(root), nothing)

    copies: list[Step] = [partial(copy, fragment) for fragment in range(len(pins))]
    return [*copies, lambda root: _seal(depot(root), manifest)]


def found(root: Path) -> Kept | None:
    """What `syncline checkpoints ls --check` shows."""
    try:
        kept = listed(f"{root}/{FOLDERS}", check=True, moved=nothing)
    except CheckpointError:  # there is not even a folder
        return None
    assert len(kept) <= 1
    return kept[0] if kept else None


def saved(root: Path, steps: list[Step], disk: Disk, patch: pytest.MonkeyPatch) -> Disk:
    with patch.context() as here:
        disk.watched(here)
        for step in steps:
            disk.step(partial(step, root))
    return disk


@pytest.mark.parametrize("in_any_order", [False, True], ids=["a journal", "any order"])
def test_a_power_cut_leaves_a_whole_checkpoint_or_none(
    in_any_order: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = pinned(tmp_path)
    manifest = manifest_of(pins)
    steps = steps_of(pins, manifest)
    live = tmp_path / "live"
    live.mkdir()
    disk = saved(live, steps, Disk(live), monkeypatch)
    there, gone = 0, 0
    for moment, root in cuts(disk, tmp_path, in_any_order=in_any_order):
        kept = found(root)
        if kept is None:
            assert moment.returned < len(steps), "it was said to be saved"
            gone += 1
            if gone % 10:  # each of them would take long
                continue
            for step in steps:
                step(root)
            kept = found(root)
            assert kept is not None, "saved again, under the same name"
        else:
            there += 1
        assert kept.damage is None
        assert depot(root).manifest() == manifest
    assert there >= 3 and gone > 30


def test_a_save_after_one_that_was_killed_outlasts_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders that the first has made may be no safer than what it had written."""
    pins = pinned(tmp_path)
    steps = steps_of(pins, manifest_of(pins))
    live = tmp_path / "live"
    live.mkdir()
    numbers, told, refused = itertools.count(), 0, 0
    for moment in saved(live, steps, Disk(live), monkeypatch).moments:
        killed = tmp_path / f"killed{next(numbers)}"
        killed.mkdir()
        after = Disk(killed).goes_on(moment)
        if found(killed) is None:
            saved(killed, steps, after, monkeypatch)
            told += 1
        else:
            saved(killed, [there_is_one], after, monkeypatch)
            refused += 1
        after.moments = after.moments[-1:]
        for _, root in cuts(after, killed / "cuts", in_any_order=True):
            kept = found(root)
            assert kept is not None and kept.damage is None, sorted(root.rglob("*"))
    assert told > 20 and refused >= 3


def there_is_one(root: Path) -> None:
    """What a save says instead, which counts on what is there."""
    with pytest.raises(CheckpointError, match="already; choose another name"):
        _see_free(depot(root))
