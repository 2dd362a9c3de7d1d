"""What was changed, lost or put in another's place is told, and nothing is removed for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline_proto.errors import StoreDamaged
from syncline_proto.settings import RunSettings
from syncline_sync.core.record import Saved
from syncline_sync.entries import Place
from syncline_sync.files import SEAL
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.run import Recalled
from syncline_sync.saved import COUNT_MAX
from syncline_sync.store import RunStore
from syncline_testing.service import flat_layout
from syncline_testing.stored import SIZE, fragment, gradient, revision, values


def damaged(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
        return
    if how == "bit":
        data[len(data) // 2] ^= 1
    elif how == "short":
        del data[-1:]
    elif how == "empty":
        data.clear()
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("how", ["gone", "bit", "short", "empty"])
@pytest.mark.parametrize("which", ["r00000000", "g00000001", "g00000002"])
def test_a_damaged_file_that_counts_is_named(tmp_path: Path, which: str, how: str) -> None:
    store = fragment(tmp_path)
    for commit in (revision(0), gradient(1), gradient(2)):
        commit(store)
    damaged(tmp_path / f"{which}.safetensors", how)
    why = {"bit": "have another checksum than", "short": "bytes where", "empty": " 0 bytes where"}
    with pytest.raises(StoreDamaged, match=f"{which}.*{why.get(how, '')}"):
        fragment(tmp_path).load()


FORMS = ["", "{}", "[]", "null", "nonsense", "[" * 100_000, '{"files": []}', '{"files": [1]}',
    '{"files": [{"a": 1}]}']  # fmt: skip


@pytest.mark.parametrize("seal", [False, True], ids=["bare", "sealed"])
@pytest.mark.parametrize("text", FORMS, ids=lambda text: text[:12])
def test_a_head_that_is_none_is_named(tmp_path: Path, text: str, seal: bool) -> None:
    revision(0)(fragment(tmp_path / "f"))
    head = tmp_path / "f" / "head.json"
    head.write_bytes(SEAL.close(text) if seal else text.encode())
    with pytest.raises(StoreDamaged, match=r"head\.json"):
        fragment(tmp_path / "f").load()
    assert (tmp_path / "f" / "r00000000.safetensors").exists(), "nothing is swept without a head"


@pytest.mark.parametrize(
    "row",
    [
        {"revision": 8},
        {"revision": "7"},
        {"revision": True},
        {"bytes": -1},
        {"gradient_step": 3},
        {"file": "../f/r00000007.safetensors"},
    ],
    ids=str,
)
def test_a_head_that_says_something_else_is_told(tmp_path: Path, row: dict[str, Any]) -> None:
    """Even one whose checksum is right."""
    for number in (6, 7):
        revision(number)(fragment(tmp_path / "f"))
    head = tmp_path / "f" / "head.json"
    rows = json.loads(SEAL.open(head.read_bytes()))["files"]
    head.write_bytes(SEAL.close(json.dumps({"files": [{**rows[0], **row}, *rows[1:]]})))
    with pytest.raises(StoreDamaged, match="f/"):
        fragment(tmp_path / "f").load()


def test_every_bit_of_a_sealed_file_counts() -> None:
    data = SEAL.close('{"files": ["é"]}')
    assert SEAL.open(data) == '{"files": ["é"]}'
    assert json.loads(data)["body"] == {"files": ["é"]}
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << i % 8
        with pytest.raises(ValueError, match=r"seal|version|checksum"):
            SEAL.open(bytes(flipped))


def test_a_lost_head_is_told_and_nothing_is_removed(tmp_path: Path) -> None:
    store = fragment(tmp_path / "f")
    for number in range(3):
        revision(number)(store)
    whole = {p.name: p.read_bytes() for p in (tmp_path / "f").iterdir()}
    (tmp_path / "f" / "head.json").unlink()
    with pytest.raises(StoreDamaged, match=r"head\.json is missing"):
        fragment(tmp_path / "f").load()
    (tmp_path / "f" / "head.json").write_bytes(whole["head.json"])
    assert {p.name: p.read_bytes() for p in (tmp_path / "f").iterdir()} == whole
    loaded = fragment(tmp_path / "f").load()
    assert loaded is not None and loaded.saved.revision == 2


def test_without_its_mark_the_head_before_tells_that_a_fragment_has_begun(tmp_path: Path) -> None:
    for number in range(2):
        revision(number)(fragment(tmp_path / "f"))
    (tmp_path / "f.begun").unlink()
    (tmp_path / "f" / "head.json").unlink()
    with pytest.raises(StoreDamaged, match=r"head\.json is missing.* --fall-back run@1: "):
        fragment(tmp_path / "f").load()


def test_there_is_no_way_back_into_the_synchronous_phase(tmp_path: Path) -> None:
    store = fragment(tmp_path / "f")
    for commit in (revision(0), gradient(1), gradient(2), revision(1)):
        commit(store)
        (tmp_path / "f" / "head.json").rename(tmp_path / "head.json")
        with pytest.raises(StoreDamaged, match=r"stop this one\.$"):
            fragment(tmp_path / "f").load()
        (tmp_path / "head.json").rename(tmp_path / "f" / "head.json")


def three_fragments(root: Path, run: str = "run") -> RunStore:
    """A run of which two fragments have begun."""
    store, layout = RunStore(root, run), flat_layout(SIZE, fragments=3)
    store.begin()
    store.save_layout(layout)
    for number, one in enumerate(store.fragments(layout)[:2]):
        one.commit(Saved(), values(number), values(10 + number))
    return store


def test_a_fragment_that_has_not_begun_is_no_damage(tmp_path: Path) -> None:
    store = three_fragments(tmp_path)
    layout = store.load_layout()
    assert layout is not None
    assert [bool(one.load()) for one in store.fragments(layout)] == [True, True, False]


@pytest.mark.parametrize("how", ["removed", "swapped", "of another run", "a folder"])
def test_a_fragment_in_the_wrong_place_is_told(tmp_path: Path, how: str) -> None:
    store = three_fragments(tmp_path)
    layout = store.load_layout()
    assert layout is not None
    first = store.folder / "00000"
    if how == "a folder":
        (first / "head.json").unlink()
        (first / "head.json").mkdir()
    else:
        shutil.rmtree(first)
    if how == "swapped":
        shutil.copytree(store.folder / "00001", first)
    if how == "of another run":
        shutil.copytree(three_fragments(tmp_path, "other").folder / "00000", first)
    with pytest.raises(StoreDamaged, match=r"00000/"):
        store.fragments(layout)[0].load()


def test_any_other_bit_of_any_file_is_told(tmp_path: Path) -> None:
    store = three_fragments(tmp_path)
    store.save_settings(RunSettings())
    random = np.random.default_rng(0)

    def recall() -> None:
        store.load_settings()
        Recalled.read(store)

    recall()
    files = [path for path in store.folder.rglob("*.*") if path.is_file() and path.stat().st_size]
    assert len(files) == 6
    for path in files:
        whole = path.read_bytes()
        for bit in random.integers(0, len(whole) * 8, 40).tolist():
            spoilt = bytearray(whole)
            spoilt[bit // 8] ^= 1 << bit % 8
            path.write_bytes(bytes(spoilt))
            with pytest.raises(StoreDamaged, match=path.name.partition(".")[0]):
                recall()
        path.write_bytes(whole)
    recall()


def test_a_layout_that_is_lost_or_another_is_told(tmp_path: Path) -> None:
    store = three_fragments(tmp_path)
    other = flat_layout(SIZE + 1, fragments=3)
    store.save_layout(other)
    with pytest.raises(StoreDamaged, match="r00000000"):
        store.fragments(other)[0].load()
    (store.folder / "layout.json").unlink()
    with pytest.raises(StoreDamaged, match=r"layout\.json is missing"):
        store.load_layout()


def test_an_epoch_that_is_lost_does_not_begin_again(tmp_path: Path) -> None:
    store = three_fragments(tmp_path)
    layout = store.load_layout()
    assert layout is not None
    for epoch, one in ((3, 1), (2, 0)):
        store.save_epoch(epoch)
        store.fragments(layout)[one].commit(Saved(revision=1, epoch=epoch), values(0), values(1))
    with pytest.raises(StoreDamaged, match=r"epoch\.json .* epoch 2, and fragment 1 .* epoch 3\."):
        Recalled.read(store)  # an older copy
    store.save_epoch(3)
    assert Recalled.read(store).epoch == 3
    store.fragments(layout)[0].fall_behind()  # what a kill left does not hide it
    store.save_epoch(COUNT_MAX + 1)
    with pytest.raises(StoreDamaged, match=r"epoch\.json is damaged.*names no epoch"):
        Recalled.read(store)
    store.epoch_file.unlink()
    with pytest.raises(StoreDamaged, match=r"epoch\.json is missing"):
        Recalled.read(store)


def test_a_file_of_another_size_than_the_layout_says_is_told(tmp_path: Path) -> None:
    revision(0)(fragment(tmp_path / "f"))
    small = Place(run="run", fragment=0, layout="00ff", numel=SIZE + 1)
    with pytest.raises(StoreDamaged, match=f"r00000000.* {SIZE + 1} elements"):
        FragmentStore(tmp_path / "f", small).load()


def test_a_state_of_another_version_is_named(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("syncline_sync.saved.VERSION", 99)
        revision(0)(fragment(tmp_path))
    with pytest.raises(StoreDamaged, match="r00000000"):
        fragment(tmp_path).load()


@pytest.mark.parametrize("name", ["layout.json", "run.json"])
def test_a_run_whose_facts_are_damaged_is_named(tmp_path: Path, name: str) -> None:
    run = RunStore(tmp_path, "run")
    run.begin()
    run.save_layout(flat_layout())
    run.save_settings(RunSettings())
    assert (run.load_layout(), run.load_settings()) == (flat_layout(), RunSettings())
    for text in (*FORMS, *map(SEAL.close, FORMS)):
        if text == SEAL.close("{}") and name == "run.json":
            continue  # settings, all of them the usual ones
        (run.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(StoreDamaged, match=name):
            run.load_layout()
            run.load_settings()
