"""The store after a power cut, and with files cut or changed: what was published, or a plain word.

What a commit has returned from is published. Whatever the disk forgets, the store comes back with
exactly that, or with the one commit that was under way; where it cannot it names a file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaos.disk import Disk, cuts
from syncline_proto.errors import StoreDamaged
from syncline_proto.layout import Layout
from syncline_proto.settings import RunSettings
from syncline_sync.core.record import Saved
from syncline_sync.fragment_store import BEFORE, FragmentStore
from syncline_sync.recalled import Recalled
from syncline_sync.store import RunStore
from syncline_testing.service import flat_layout
from syncline_testing.stored import SIZE, told, values

RUN = "run"
LAYOUT = flat_layout(SIZE, fragments=2)
SETTINGS = RunSettings(min_replicas=3)

Step = Callable[[RunStore, list[FragmentStore]], None]


def revision(fragment: int, number: int) -> Step:
    """Commit a revision that is like no other, and remove what it replaces."""
    own = 10 * number + fragment
    saved = Saved(revision=number, committed_tokens=own)

    def step(_: RunStore, stores: list[FragmentStore]) -> None:
        stores[fragment].commit(saved, values(own), values(500 + own))
        stores[fragment].sweep()

    return step


def gradient(fragment: int, step: int) -> Step:
    saved = Saved(revision=0, gradient_step=step, committed_tokens=step)
    return lambda _, stores: stores[fragment].commit_gradient(saved, values(1000 + step))


def difference(fragment: int, number: int) -> Step:
    """Commit a revision whose published value is beside it."""
    own = 10 * number + fragment
    saved = Saved(revision=number, committed_tokens=own, down="int8")
    told = values(700 + own).astype(np.float16).view(np.uint16)

    def step(_: RunStore, stores: list[FragmentStore]) -> None:
        stores[fragment].commit(saved, values(own), values(500 + own), told)
        stores[fragment].sweep()

    return step


def offer(fragment: int, phase: int) -> Step:
    saved = Saved(revision=0, gradient_step=2, committed_tokens=phase, phase=phase)
    return lambda _, stores: stores[fragment].commit_offer(saved, values(2000 + phase))


def settings_first(run: RunStore, _: object) -> None:
    run.begin()
    run.save_settings(SETTINGS)


def layout_first(run: RunStore, _: object) -> None:
    run.begin()
    run.save_layout(LAYOUT)


STEPS: dict[str, list[Step]] = {
    "a run begins": [
        settings_first,
        lambda run, _: run.save_layout(LAYOUT),
        revision(0, 0),
        revision(1, 0),
    ],
    "revisions": [
        layout_first,
        *(
            kind(number)
            for number in range(3)
            for kind in (partial(revision, 0), partial(difference, 1))
        ),
    ],
    "the synchronous phase": [
        layout_first,
        revision(0, 0),
        gradient(0, 1),
        gradient(0, 2),
        gradient(0, 3),
        offer(0, 0),
        offer(0, 1),
        revision(0, 1),
    ],
    "published before it is written": [
        layout_first,
        revision(0, 0),
        lambda _, stores: stores[0].fall_behind(),
        revision(0, 1),
        # A service that comes after a kill.
        lambda run, _: run.save_epoch(2),
        lambda _, stores: stores[0].catch_up(),
        lambda _, stores: stores[0].fall_behind(),
        revision(0, 2),
    ],
    "settings change": [
        settings_first,
        lambda run, _: run.save_settings(RunSettings(min_replicas=4)),
    ],
}


@dataclass(frozen=True, slots=True)
class Found:
    """What a service that starts finds."""

    of_run: tuple[RunSettings | None, Layout | None, int]
    behind: tuple[bool, ...]
    fragments: tuple[Any, ...]

    def fits(self, other: Found) -> bool:
        """Whether it is as ``other``, but for marks more of what may be behind.

        One that was taken away may be back: then replicas pull in vain, and nothing is lost.
        """
        marks = zip(self.behind, other.behind, strict=True)
        return replace(self, behind=other.behind) == other and all(a >= b for a, b in marks)


def found(root: Path) -> Found:
    """What a service that starts here finds.

    Raises:
        StoreDamaged: it finds damage, and names a file.
    """
    run = RunStore(root, RUN)
    settings = run.load_settings() if run.has_settings else None
    layout = run.load_layout()
    stores = run.fragments(LAYOUT)
    return Found(
        (settings, layout, run.load_epoch()),
        tuple(store.is_behind for store in stores),
        () if layout is None else tuple(told(store) for store in stores),
    )


def opened(root: Path) -> tuple[RunStore, list[FragmentStore]]:
    """A run as a service has it in hand once it has read it."""
    run = RunStore(root, RUN)
    stores = run.fragments(LAYOUT)
    for store in stores:
        store.load()
    return run, stores


def worked(root: Path, steps: list[Step], patch: pytest.MonkeyPatch) -> tuple[Disk, list[Any]]:
    """Do the steps on a disk that is watched; and what each of them left behind for a reader."""
    root.mkdir()
    run, stores = opened(root)
    states = [found(root)]
    with patch.context() as here:
        disk = Disk(root).watched(here)
        for step in steps:
            disk.step(lambda step=step: step(run, stores))
            states.append(found(root))
    return disk, states


@pytest.mark.parametrize("in_any_order", [False, True], ids=["a journal", "any order"])
@pytest.mark.parametrize("history", STEPS)
def test_a_power_cut_leaves_what_was_published(
    history: str, in_any_order: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a journal the name of a file that a commit under way has written may be lost, and
    that of the head that names it not: this is told.
    """
    steps = STEPS[history]
    disk, states = worked(tmp_path / "live", steps, monkeypatch)
    reached: set[int] = set()
    seen = 0
    for moment, root in cuts(disk, tmp_path, in_any_order=in_any_order):
        seen += 1
        try:
            state = found(root)
        except StoreDamaged as damage:
            assert in_any_order and moment.under_way, damage.message
            assert str(root) in damage.message
            continue
        allowed = range(moment.returned, min(moment.returned + 2, len(states)))
        nearest = sorted(allowed, key=lambda at: state != states[at])
        at = next((at for at in nearest if state.fits(states[at])), None)
        assert at is not None, f"after {moment.returned} steps: {sorted(root.rglob('*'))}"
        reached.add(at)
        if at < len(steps):
            steps[at](*opened(root))
            assert found(root).fits(states[at + 1]), "and life goes on"
    assert reached == set(range(len(states))), "every state is met"
    assert seen > 10 * len(steps)


@pytest.mark.parametrize("history", ["a run begins", "published before it is written"])
def test_a_power_cut_after_a_kill_leaves_what_was_told_in_between(
    history: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who starts after a kill may be the first to tell of a commit: then it is on the disk."""
    disk, _ = worked(tmp_path / "live", STEPS[history], monkeypatch)
    numbers, told_of = itertools.count(), set[int]()
    for moment in disk.moments:
        killed = tmp_path / f"killed{next(numbers)}"
        killed.mkdir()
        with monkeypatch.context() as here:
            after = Disk(killed).goes_on(moment).watched(here)
            after.step(lambda killed=killed: Recalled.read(RunStore(killed, RUN)))
        state = found(killed)
        told_of.add(len(state.fragments))
        after.moments = after.moments[-1:]
        for _, root in cuts(after, killed / "cuts", in_any_order=True):
            assert found(root).fits(state), sorted(root.rglob("*"))
    assert told_of == {0, 2}


def lengths(whole: bytes) -> Iterator[int]:
    """One of each kind: of nothing, of the header's length, of the header, of each tensor."""
    size = len(whole)
    yield from (0, 1, 7, 8, 9, size // 3, size // 2, size - 4096, size - 4, size - 1)
    if whole[8:9] == b"{":  # a file of tensors
        start = 8 + int.from_bytes(whole[:8], "little")
        yield from (start - 1, start, start + 1, start + 4 * SIZE - 1, start + 4 * SIZE)


def spoilt(whole: bytes) -> Iterator[bytes]:
    """What a crash of a disk or of its machine makes of a file that was whole."""
    for length in sorted({length for length in lengths(whole) if 0 <= length < len(whole)}):
        yield whole[:length]
        yield whole[:length] + bytes(len(whole) - length)  # its length was kept, its data not
        if length:
            yield bytes(length) + whole[length:]
        yield whole[:length] + bytes([whole[length] ^ 0x10]) + whole[length + 1 :]
    yield whole + b"\0"
    yield whole + whole


def test_a_file_that_was_cut_or_changed_is_named_or_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "live"
    steps = [
        *STEPS["a run begins"], revision(0, 1), difference(0, 2), gradient(1, 1), offer(1, 0),
        lambda run, _: run.save_epoch(2),
    ]  # fmt: skip
    worked(root, steps, monkeypatch)
    whole = found(root)
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    files = [path for path in files if path.name != BEFORE]  # nobody asks it where a head is whole
    assert {path.suffix for path in files} == {".json", ".safetensors"} and len(files) == 10
    for path in files:
        data, named = path.read_bytes(), 0
        for other in spoilt(data):
            if other == data:
                continue
            path.write_bytes(other)
            with pytest.raises(StoreDamaged, match=path.name):
                found(root)
            named += 1
        assert named > 20
        path.write_bytes(data)
    assert found(root) == whole


def test_what_a_crash_left_beside_counts_for_nothing(tmp_path: Path) -> None:
    """Whole and half files of commits that never came to their head, newer and older ones."""
    root = tmp_path / "live"
    root.mkdir()
    run, stores = opened(root)
    for step in STEPS["revisions"]:
        step(run, stores)
    whole = found(root)
    folder = run.folder / "00000"
    newest = (folder / "r00000002.safetensors").read_bytes()
    for name in ("r00000003", "r00000000", "g00000009", "r00000002.1"):
        for data in (newest, newest[: len(newest) // 2], b""):
            (folder / f"{name}.safetensors").write_bytes(data)
            (folder / "head.json.new").write_bytes(data)
            assert found(root) == whole
    _, stores = opened(root)
    revision(0, 3)(run, stores)
    assert sorted(path.name for path in folder.iterdir()) == [
        BEFORE, "head.json", "r00000002.safetensors", "r00000003.safetensors",
    ]  # fmt: skip
    assert found(root).fragments[0][0].revision == 3
