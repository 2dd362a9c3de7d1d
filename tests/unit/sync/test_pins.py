"""What is pinned outlasts every commit, and what is copied of it is checked on the way."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from syncline_proto.depot import Depot
from syncline_proto.errors import CheckpointError, RevisionGone, StoreDamaged, StoreError
from syncline_sync import pins
from syncline_sync.core.record import KEPT
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.pins import Pinned, pin_all, pin_folder, unpin
from syncline_testing.stored import fragment, revision


def nothing(_: int) -> None:
    pass


def pinned(store: FragmentStore, root: Path, number: int) -> tuple[Path, Pinned]:
    folder = pin_folder(root)
    return folder, pin_all(folder, {0: partial(store.pin, number)})[0]


def test_a_pinned_revision_outlasts_the_commits_that_remove_it(tmp_path: Path) -> None:
    store = fragment(tmp_path / "f")
    for number in range(KEPT):
        revision(number)(store)
    file = tmp_path / "f" / "r00000000.safetensors"
    before = file.read_bytes()
    folder, held = pinned(store, tmp_path, 0)
    for number in range(KEPT, KEPT + 3):
        revision(number)(store)
    assert not file.exists()
    depot = Depot(str(tmp_path / "kept"))
    moved: list[int] = []
    name = held.copy(7, depot, moved.append)
    assert (tmp_path / "kept" / name).read_bytes() == before
    assert name == f"00007-{held.entry.crc32c:08x}.safetensors"
    assert sum(moved) == held.entry.bytes == len(before)
    unpin(folder)
    assert not folder.exists()


@pytest.mark.parametrize("number", [0, KEPT + 1])
def test_only_what_is_kept_can_be_pinned(tmp_path: Path, number: int) -> None:
    store = fragment(tmp_path / "f")
    for kept in range(KEPT + 1):
        revision(kept)(store)
    with pytest.raises(RevisionGone):
        pinned(store, tmp_path, number)


def test_a_store_that_was_moved_away_is_not_made_anew(tmp_path: Path) -> None:
    store = fragment(tmp_path / "f")
    revision(0)(store)
    with pytest.raises(CheckpointError, match=r"pinned.*Bring its folder back"):
        pinned(store, tmp_path / "moved", 0)
    assert not (tmp_path / "moved").exists()


@pytest.mark.parametrize("harm", ["flipped", "cut"])
def test_a_damaged_file_is_not_copied_as_if_it_were_whole(tmp_path: Path, harm: str) -> None:
    store = fragment(tmp_path / "f")
    revision(0)(store)
    _, held = pinned(store, tmp_path, 0)
    data = bytearray(held.path.read_bytes())
    data[100] ^= 1
    held.path.write_bytes(data if harm == "flipped" else data[:-1])
    depot = Depot(str(tmp_path / "kept"))
    with pytest.raises(StoreDamaged, match="r00000000"):
        held.copy(0, depot, nothing)
    assert depot.sizes() == {}


def test_want_of_descriptors_ends_the_copy_and_not_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fragment(tmp_path / "f")
    revision(0)(store)
    _, held = pinned(store, tmp_path, 0)
    depot = Depot(str(tmp_path / "kept"))

    def none_left(path: Path, how: object) -> None:
        raise StoreError(f"Cannot open {path}: too many open files.")

    with monkeypatch.context() as patch:
        patch.setattr(pins, "opened", none_left)
        with pytest.raises(CheckpointError, match=r"r00000000.* too many open files"):
            held.copy(0, depot, nothing)
    held.path.unlink()
    with pytest.raises(CheckpointError, match=r"r00000000.* cannot be read: No such file"):
        held.copy(0, depot, nothing)
    assert depot.sizes() == {}


def test_a_copy_ends_where_it_is_told_to(tmp_path: Path) -> None:
    store = fragment(tmp_path / "f")
    revision(0)(store)
    _, held = pinned(store, tmp_path, 0)

    def enough(_: int) -> None:
        raise CheckpointError("enough")

    depot = Depot(str(tmp_path / "kept"))
    with pytest.raises(CheckpointError, match="enough"):
        held.copy(0, depot, enough)
    assert depot.sizes() == {}
