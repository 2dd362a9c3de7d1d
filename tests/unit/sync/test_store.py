"""The store keeps what it acknowledged: to the bit, through kills, torn files and full disks."""

from __future__ import annotations

import errno
import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from structlog.testing import capture_logs

from syncline_proto.errors import StoreError
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.detector import Ema, ReplicaNorms, Statistics
from syncline_sync.core.record import Contribution, LastPush, Saved
from syncline_sync.fragment_store import BEFORE
from syncline_sync.saved import saved_from_json, saved_to_json
from syncline_testing.full import files_may_have
from syncline_testing.stored import Commit, fragment, gradient, revision, told, values

Files = dict[str, bytes]

BUSY = Saved(
    epoch=3,
    revision=7,
    gradient_step=4,
    committed_tokens=2**50,
    statistics=Statistics(
        Ema(2, 1.5, 2.5, 0.96), Ema(1, 0.1, 0.01, 0.98), 5, 1,
        {"a": ReplicaNorms(Ema(1, 1.0, 1.0, 0.98), 3, (9.0, 8.5))},
    ),
    measured="bf16 64 edit",
    last={"a": LastPush(incarnation=2, seq=9, verdict=pb.VERDICT_ANOMALOUS, result=7)},
    contributions=(
        Contribution(
            replica="a", incarnation=2, seq=9, verdict=pb.VERDICT_ACCEPTED, folded=0.1 + 0.2,
            rescale=1.0, weight=1.0, norm=math.inf, z=-1.25, inner_steps=64, tokens=4096,
            first_step=0, last_step=64, reason='because of "quotes" and ü',
        ),
    ),
    down="fp32",
    taking_part={"a": 2},
)  # fmt: skip


def after(folder: Path, *commits: Commit) -> Any:
    """What a service finds that starts after these commits."""
    store = fragment(folder)
    for commit in commits:
        commit(store)
    return told(fragment(folder))


def test_everything_remembered_comes_back_equal() -> None:
    assert saved_from_json(saved_to_json(BUSY)) == BUSY
    nan = replace(BUSY.contributions[0], norm=math.nan)
    back = saved_from_json(saved_to_json(replace(BUSY, contributions=(nan,))))
    assert math.isnan(back.contributions[0].norm)


def test_a_commit_comes_back_to_the_bit_and_any_reader_can_read_it(tmp_path: Path) -> None:
    odd = values(1)
    odd[:4] = [np.inf, -0.0, np.float32(1e-45), -np.inf]
    fragment(tmp_path / "f").commit(BUSY, odd, values(2))
    loaded = fragment(tmp_path / "f").load()
    assert loaded is not None
    assert loaded.saved == BUSY
    assert loaded.parameters.tobytes() == odd.tobytes()
    assert loaded.momentum.tobytes() == values(2).tobytes()
    tensors = load_file(tmp_path / "f" / "r00000007.safetensors")
    assert tensors.keys() == {"parameters", "momentum"}
    assert tensors["parameters"].tobytes() == odd.tobytes()
    assert tensors["momentum"].tobytes() == values(2).tobytes()


def test_two_revisions_are_kept_each_with_what_was_saved_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    store = fragment(folder)
    for number in range(4):
        revision(number)(store)
    loaded = fragment(folder).load()
    assert loaded is not None
    assert [s.revision for s in loaded.revisions] == [2, 3]
    assert [s.committed_tokens for s in loaded.revisions] == [2, 3]
    kept = told(fragment(folder))[2]
    assert [held for _, held in kept] == [values(n).tobytes() for n in (2, 3)]
    assert loaded.momentum.tobytes() == values(103).tobytes()
    assert {p.name for p in folder.iterdir()} == {
        BEFORE, "head.json", "r00000002.safetensors", "r00000003.safetensors",
    }  # fmt: skip


def test_mean_gradients_are_kept_until_revision_1(tmp_path: Path) -> None:
    store = fragment(tmp_path)
    for commit in (revision(0), gradient(1), gradient(2), gradient(3)):
        commit(store)
    loaded = fragment(tmp_path).load()
    assert loaded is not None
    assert [s.gradient_step for s in loaded.gradients] == [2, 3]
    assert loaded.gradient is not None and loaded.gradient.tobytes() == values(1003).tobytes()
    assert loaded.saved.gradient_step == 3
    assert loaded.parameters.tobytes() == values(0).tobytes()
    revision(1)(store)
    loaded = fragment(tmp_path).load()
    assert loaded is not None
    assert (loaded.saved.revision, loaded.gradients) == (1, ())
    assert not list(tmp_path.glob("g*"))


# Kills


class Disk:
    """Records the folder before and after each act that changes it or makes it durable."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = root
        self.states: list[Files] = []
        for name in ("fsync", "replace", "unlink", "mkdir"):
            patch.setattr(os, name, self._recorded(getattr(os, name)))

    def look(self) -> None:
        found = {
            str(path.relative_to(self._root)): path.read_bytes()
            for path in self._root.rglob("*")
            if path.is_file()
        }
        if not self.states or found != self.states[-1]:
            self.states.append(found)

    def _recorded(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            self.look()
            try:
                return act(*args, **kwargs)
            finally:
                self.look()

        return recorded


def torn(states: list[Files]) -> Iterator[Files]:
    """Each state, and before it those in which the file that it brings is half written."""
    yield states[0]
    for before, state in itertools.pairwise(states):
        for name, whole in state.items():
            if whole in before.values():
                continue  # not touched; or renamed, which is all or nothing
            for length in {0, 1, 8, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
                yield {**before, name: whole[:length]}
        yield state


HISTORIES = {
    "the first commit": ([], revision(0)),
    "the second revision": ([revision(0)], revision(1)),
    "a later revision": ([revision(0), revision(1), revision(2)], revision(3)),
    "the first gradient": ([revision(0)], gradient(1)),
    "a later gradient": ([revision(0), gradient(1), gradient(2)], gradient(3)),
    "the end of the phase": ([revision(0), gradient(1), gradient(2)], revision(1)),
    "the phase once more": ([revision(0), gradient(1)], gradient(1, life=1)),
    "and once more": ([revision(0), gradient(1), gradient(1, life=1)], gradient(1, life=2)),
}


@pytest.mark.parametrize("history", HISTORIES)
def test_a_kill_at_any_moment_leaves_the_old_state_or_the_new(
    history: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, last = HISTORIES[history]
    allowed = [after(tmp_path / "old", *earlier), after(tmp_path / "new", *earlier, last)]
    assert allowed[0] != allowed[1]
    (tmp_path / "live").mkdir()
    store = fragment(tmp_path / "live" / "f")
    for commit in earlier:
        commit(store)
    with monkeypatch.context() as patch:
        disk = Disk(tmp_path / "live", patch)
        disk.look()
        last(store)
    moments = list(torn(disk.states))
    assert len(moments) > 12
    found = []
    for i, files in enumerate(moments):
        root = tmp_path / f"crash{i}"
        root.mkdir()
        for name, data in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        found.append(allowed.index(told(fragment(root / "f"))))
        if found[-1] == 0:
            again = fragment(root / "f")
            again.load()
            last(again)
            assert told(fragment(root / "f")) == allowed[1], "and life goes on"
            left, usual = ({p.name for p in at.iterdir()} for at in (root / "f", tmp_path / "new"))
            assert left == usual, "what a kill left is swept"
    assert found == sorted(found), "once the new state is there it stays"
    assert set(found) == {0, 1}


def test_who_reads_takes_nothing_from_who_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands on the disk before a head names it, and nobody else may think it left over."""
    store = fragment(tmp_path)
    for commit in (revision(0), revision(1)):
        commit(store)
    sync = os.fsync

    def read_meanwhile(handle: int) -> None:
        sync(handle)
        fragment(tmp_path).load()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", read_meanwhile)
        revision(2)(store)
    loaded = fragment(tmp_path).load()
    assert loaded is not None
    assert [s.revision for s in loaded.revisions] == [1, 2]


def test_a_commit_is_synced_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File, then head, then its rename, then the folder: a power cut loses none of them."""
    acts: list[str] = []
    sync, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        number = os.fstat(handle).st_ino
        paths = [tmp_path, *tmp_path.iterdir()]
        acts.append(f"sync {next(p.name for p in paths if p.stat().st_ino == number)}")
        sync(handle)

    def replaced(source: Path, target: Path) -> None:
        acts.append(f"{source.name} -> {target.name}")
        rename(source, target)

    store = fragment(tmp_path)
    revision(0)(store)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "replace", replaced)
        revision(1)(store)
    assert acts == [
        "sync r00000001.safetensors",
        "sync head.json.new",
        f"{BEFORE}.new -> {BEFORE}",
        "head.json.new -> head.json",
        f"sync {tmp_path.name}",
    ]


def test_the_head_before_the_newest_is_kept_where_the_disk_has_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    store, kept = fragment(tmp_path), list[list[int]]()
    for number in range(4):
        with monkeypatch.context() as patch:
            if number == 3:
                patch.setattr(os, "link", refused)
            revision(number)(store)
        kept.append([entry.revision for entry in store.before()])
    assert kept == [[], [0], [1, 0], []], "none rather than an older one"
    assert after(tmp_path)[0].revision == store.lost == 3
    assert not list(tmp_path.glob("*.new"))


# Full disks


@pytest.mark.parametrize("room", [0, 100, 2000, 4000])
def test_a_full_disk_is_an_error_and_changes_nothing(tmp_path: Path, room: int) -> None:
    store = fragment(tmp_path)
    revision(0)(store)
    before = after(tmp_path)
    with files_may_have(room), pytest.raises(StoreError, match="Cannot write"):
        revision(1)(store)
    assert {p.name for p in tmp_path.iterdir()} == {"head.json", "r00000000.safetensors"}
    assert after(tmp_path) == before
    revision(1)(store)
    assert after(tmp_path)[0].revision == 1


def test_a_disk_that_refuses_to_sync_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fragment(tmp_path)
    revision(0)(store)
    before = after(tmp_path)

    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(StoreError, match="Input/output error"):
            revision(1)(store)
    assert after(tmp_path) == before


def test_what_cannot_be_removed_keeps_nothing_else_there(tmp_path: Path) -> None:
    """Each commit removes what no head names; somebody's folder among it is left, and told once."""
    folder = tmp_path / "f"
    store = fragment(folder)
    revision(0)(store)
    for name in "abcdefgh":  # whatever the order in which a folder lists them
        (folder / f"{name}.old").touch()
        (folder / f"{name}.folder").mkdir()
    with capture_logs() as said:
        for number in (1, 2, 3):
            revision(number)(store)
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert names == {BEFORE, "head.json", "r00000002.safetensors", "r00000003.safetensors"}
    assert len(said) == len({line["file"] for line in said}) == 8
