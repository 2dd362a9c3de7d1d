"""A power cut amid a restore, and amid a fall-back: the run is there whole, or not at all."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from chaos.disk import Disk, cuts
from chaos.test_torn import LAYOUT, RUN, SETTINGS, found, opened, revision
from syncline_proto.depot import Depot
from syncline_proto.errors import StoreDamaged
from syncline_proto.layout import layout_to_json
from syncline_proto.manifest import Entry, Manifest, file_name
from syncline_proto.owners import Seat
from syncline_sync.aside import Aside, sweep_aside
from syncline_sync.entries import Entry as Head
from syncline_sync.fallback import fall_back
from syncline_sync.pins import Pinned
from syncline_sync.store import RunStore

ID = "0" * 32
FRAGMENTS = range(len(LAYOUT.fragments))


def trained(root: Path, *numbers: int) -> None:
    """A run whose fragments stand at the last of these revisions."""
    root.mkdir()
    run, stores = opened(root)
    run.begin()
    run.save_layout(LAYOUT)
    run.save_settings(SETTINGS)
    for number in numbers:
        for fragment in FRAGMENTS:
            revision(fragment, number)(run, stores)


def pinned(folder: Path) -> list[Pinned]:
    """The files of a run's fragments at revision 3."""
    trained(folder / "source", 3)
    stores = opened(folder / "source")[1]
    paths = [folder / f"pin{fragment}" for fragment in FRAGMENTS]
    return [Pinned(path, store.pin(3, path)) for path, store in zip(paths, stores, strict=True)]


def manifest_of(pins: list[Pinned]) -> Manifest:
    """That of a checkpoint of these files."""
    entries = [
        Entry(
            fragment=fragment,
            file=file_name(fragment, pin.entry.crc32c),
            bytes=pin.entry.bytes,
            crc32c=pin.entry.crc32c,
            revision=3,
            committed_tokens=0,
        )
        for fragment, pin in enumerate(pins)
    ]
    return Manifest(
        id=ID,
        run="source",
        revision=3,
        committed_tokens=0,
        created_at=1.0,
        fingerprint=LAYOUT.fingerprint(),
        layout=json.loads(layout_to_json(LAYOUT)),
        settings=SETTINGS,
        job={},
        entries=tuple(entries),
    )


def checkpoint(folder: Path) -> tuple[Depot, Manifest]:
    """One of revision 3."""
    depot, pins = Depot(str(folder / "kept")), pinned(folder)
    for fragment, pin in enumerate(pins):
        pin.copy(fragment, depot, lambda _: None)
    return depot, manifest_of(pins)


@pytest.mark.parametrize("in_any_order", [False, True], ids=["a journal", "any order"])
def test_a_power_cut_leaves_what_was_restored_or_nothing(
    in_any_order: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depot, manifest = checkpoint(tmp_path)
    live = tmp_path / "live"
    live.mkdir()

    def aside(root: Path) -> Aside:
        return Aside(root, RUN, ID, Seat())

    def fetch(root: Path) -> None:
        places = aside(root).begin(manifest)
        for number in FRAGMENTS:
            aside(root).fetch(places[number], manifest.entries[number], depot, lambda _: None)
        aside(root).finish()

    steps = [fetch, lambda root: aside(root).adopt(depot.url)]
    with monkeypatch.context() as here:
        disk = Disk(live).watched(here)
        for step in steps:
            disk.step(partial(step, live))
    there, gone = 0, 0
    for moment, root in cuts(disk, tmp_path, in_any_order=in_any_order):
        sweep_aside(root)
        try:
            aside(root).adopt(depot.url)
        except StoreDamaged:
            assert not moment.returned, "it had been fetched"
            assert not (root / "runs" / RUN).exists()
            gone += 1
            if gone % 10 == 0:  # each of them would take long
                for step in steps:
                    step(root)
                assert found(root) == found(live)
            continue
        assert found(root) == found(live)
        there += 1
    assert there >= 5 and gone > 50


def heads(root: Path) -> list[list[Head] | None]:
    return [store.head() for store in RunStore(root, RUN).fragments(LAYOUT)]


@pytest.mark.parametrize("in_any_order", [False, True], ids=["a journal", "any order"])
def test_a_power_cut_on_the_way_back_leaves_a_run_that_is_refused_or_is_back(
    in_any_order: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = tmp_path / "live"
    trained(live, 1, 2)
    newest = live / "runs" / RUN / "00000" / "r00000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    before = heads(live)
    with monkeypatch.context() as here:
        disk = Disk(live).watched(here)
        disk.step(lambda: fall_back(RunStore(live, RUN), 2))
    after = found(live)
    assert after.of_run[2] == 2 and [one[0].revision for one in after.fragments] == [1, 1]
    reached: set[bool] = set()
    for moment, root in cuts(disk, tmp_path, in_any_order=in_any_order):
        if heads(root) != before:
            assert RunStore(root, RUN).load_epoch() == 2, "what goes back is of another epoch"
        try:
            state = found(root)
        except StoreDamaged as damage:
            assert not moment.returned and newest.name in damage.message
            assert fall_back(RunStore(root, RUN), 2) is not None
            reached.add(False)
            state = found(root)
            assert state.fragments == after.fragments and state.of_run[2] >= 2
        else:
            assert state == after
            reached.add(True)
    assert reached == {False, True}
