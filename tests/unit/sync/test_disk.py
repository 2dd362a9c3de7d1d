"""What is done at the disk counts only if the store is where it was, before and after."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from syncline_proto.errors import StoreDamaged, StoreError
from syncline_proto.locks import owned
from syncline_sync.disk import READERS, Disk, check_is_there
from syncline_sync.files import make_folder
from syncline_sync.pool import compute, shut_down
from syncline_sync.store import RunStore
from syncline_testing.service import flat_layout
from syncline_testing.stored import fragment, revision


def moved(store: Path) -> None:
    store.rename(store.with_name("moved"))


def unmounted(store: Path) -> None:
    moved(store)
    store.mkdir()


def replaced(store: Path) -> None:
    """By a copy, which has a lock file, too."""
    moved(store)
    shutil.copytree(store.with_name("moved"), store)


def above_is_a_file(store: Path) -> None:
    shutil.rmtree(store)
    store.write_text("")


@pytest.mark.parametrize("go", [shutil.rmtree, moved, unmounted, replaced, above_is_a_file])
def test_a_folder_that_goes_is_told_whatever_is_in_its_place(
    tmp_path: Path, go: Callable[[Path], None]
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    lock = owned(store / "lock")
    assert lock is not None
    with lock:
        check_is_there(store, lock)
        go(store)
        with pytest.raises(StoreError, match=f"^The store's folder {store} was moved, .*again: "):
            check_is_there(store, lock)
        if go is moved:
            store.with_name("moved").rename(store)
            check_is_there(store, lock)


def test_what_was_written_while_the_store_went_does_not_count() -> None:
    """Whatever the work itself has met; and nothing more is begun."""
    gone, done = [False], list[str]()

    def look() -> None:
        if gone[0]:
            raise StoreError("gone.")

    def write(how: str) -> str:
        done.append(how)
        gone[0] = how != "well"
        if how == "damaged":
            raise StoreDamaged("it seems so.")
        return how

    async def scenario() -> None:
        disk = Disk()
        disk.watch(look)
        assert await disk.do(write, "well") == "well"
        for how in ("lost", "damaged"):
            gone[0] = False
            for _ in range(2):
                with pytest.raises(StoreError, match=r"^gone\."):
                    await disk.do(write, how)
        assert shut_down(disk.pools, 60)

    asyncio.run(scenario())
    assert done == ["well", "lost", "damaged"]


def test_who_looks_something_up_stands_behind_no_reader() -> None:
    """A file that a pull wants may be large, and is read whole before."""
    has_looked = threading.Event()

    async def scenario() -> None:
        disk = Disk()
        reading = [
            asyncio.create_task(compute(disk.readers, has_looked.wait, 10)) for _ in range(READERS)
        ]
        assert await disk.find(lambda: "there") == "there"
        has_looked.set()
        assert all(await asyncio.gather(*reading))
        assert shut_down(disk.pools, 60)

    asyncio.run(scenario())


def test_no_commit_makes_a_folder_anew(tmp_path: Path) -> None:
    root = tmp_path / "store"
    run = RunStore(root, "run")
    with pytest.raises(StoreError, match="Bring its folder back"):
        run.begin()
    root.mkdir()
    run.begin()
    run.save_layout(flat_layout())
    shutil.rmtree(run.folder)
    with pytest.raises(StoreError, match="Bring its folder back"):
        run.save_layout(flat_layout())
    assert list(root.rglob("*")) == [root / "runs"]


def test_no_commit_makes_a_fragment_that_has_begun_anew(tmp_path: Path) -> None:
    make_folder(tmp_path / "run")
    store = fragment(tmp_path / "run" / "f")
    revision(0)(store)
    for folder in (store.folder, store.folder.parent):
        shutil.rmtree(folder)
        with pytest.raises(StoreError, match="Bring its folder back"):
            revision(1)(store)
    assert not list(tmp_path.iterdir())
