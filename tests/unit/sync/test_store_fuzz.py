"""Files of a run that were changed anywhere: the load is what was committed, or names the file.

Bytes, lengths, one file in another's place, and texts that are sealed rightly and say something
else. Never another error, and never another value.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from syncline_proto.errors import StoreDamaged
from syncline_proto.settings import RunSettings
from syncline_sync.core.record import Saved
from syncline_sync.files import SEAL
from syncline_sync.fragment_store import BEFORE
from syncline_sync.store import RunStore
from syncline_testing.service import flat_layout
from syncline_testing.stored import told, values

SIZE = 16
STATES = (
    ("00000", (Saved(revision=3), Saved(revision=4))),
    ("00001", (Saved(revision=0),)),
)
QUIETLY = settings(
    max_examples=120,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def some_run(root: Path) -> RunStore:
    """Two fragments: one with two revisions, one with a revision and a mean gradient."""
    store, layout = RunStore(root, "run"), flat_layout(SIZE, fragments=2)
    store.begin()
    store.save_layout(layout)
    store.save_settings(RunSettings())
    for number, (one, (_, states)) in enumerate(zip(store.fragments(layout), STATES, strict=True)):
        for saved in states:
            seed = 10 * number + saved.revision
            one.commit(saved, values(seed)[:SIZE], values(100 + seed)[:SIZE])
    gradient = Saved(revision=0, gradient_step=1)
    one = store.fragments(layout)[1]
    one.load()
    one.commit_gradient(gradient, values(7)[:SIZE])
    return store


def recalled(store: RunStore) -> Any:
    """All that the files say, in a form that can be compared."""
    layout = store.load_layout()
    if layout is None:
        return None
    return layout, store.load_settings(), [told(one) for one in store.fragments(layout)]


def files_of(store: RunStore) -> list[Path]:
    """All files that say something; the marks are empty, and nobody asks the head before a head."""
    found = sorted(p for p in store.folder.rglob("*") if p.is_file() and p.stat().st_size)
    found = [path for path in found if path.name != BEFORE]
    assert len(found) == 8
    return found


@contextmanager
def changed(path: Path, data: bytes) -> Iterator[None]:
    """A file that holds something else for a while."""
    whole = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(whole)


def damage_is_told(store: RunStore, path: Path, data: bytes, whole: Any) -> None:
    """With these bytes in a file the load is as it was, or names that file."""
    with changed(path, data):
        try:
            assert recalled(store) == whole
        except StoreDamaged as error:
            assert f"{path.parent.name}/{path.name}" in error.message, error.message


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    return some_run(tmp_path_factory.mktemp("store"))


def test_bytes_and_lengths_all_over_every_file_count(run: RunStore) -> None:
    whole = recalled(run)
    for path in files_of(run):
        data = path.read_bytes()
        for at in range(0, len(data), 2 if path.name == "head.json" else 29):
            spoilt = bytearray(data)
            spoilt[at] ^= 1 << at % 8
            for bytes_now in (bytes(spoilt), data[:at]):
                with changed(path, bytes_now), pytest.raises(StoreDamaged, match=path.name):
                    recalled(run)
    assert recalled(run) == whole


@QUIETLY
@given(st.data())
def test_bytes_changed_in_many_places_are_told(run: RunStore, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files_of(run)))
    spoilt = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(spoilt)))
        how = data.draw(st.sampled_from(["set", "cut", "insert", "repeat"]))
        if how == "set":
            spoilt[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
        elif how == "cut":
            del spoilt[at : at + data.draw(st.integers(1, 40))]
        elif how == "insert":
            spoilt[at:at] = data.draw(st.binary(max_size=40))
        else:
            spoilt[at:at] = spoilt[at : at + data.draw(st.integers(1, 40))]
    damage_is_told(run, path, bytes(spoilt), recalled(run))


def test_any_file_in_the_place_of_any_other_is_told(run: RunStore) -> None:
    paths = files_of(run)
    whole = {path: path.read_bytes() for path in paths}
    for path in paths:
        for other in paths:
            if whole[path] != whole[other]:
                # A head that is whole names files that are not there, or another fragment's.
                named = f"{path.parent.name}/" if path.name == "head.json" else path.name
                with changed(path, whole[other]), pytest.raises(StoreDamaged, match=named):
                    recalled(run)


def test_an_older_head_with_the_files_that_it_names_is_the_older_revision(tmp_path: Path) -> None:
    """What a copy brings back is whole, or told: the newer file alone changes nothing."""
    store = some_run(tmp_path)
    layout = store.load_layout()
    assert layout is not None
    one = store.fragments(layout)[0]
    one.load()
    folder = one.folder
    kept = shutil.copytree(folder, tmp_path / "kept")
    one.commit(Saved(revision=5), values(5)[:SIZE], values(105)[:SIZE])
    one.sweep()
    shutil.copy(kept / "head.json", folder)
    with pytest.raises(StoreDamaged, match="r00000003"):
        store.fragments(layout)[0].load()
    shutil.copy(kept / "r00000003.safetensors", folder)
    loaded = store.fragments(layout)[0].load()
    assert loaded is not None and loaded.saved.revision == 4


@QUIETLY
@given(st.data())
def test_a_sealed_text_that_says_something_else_is_told(run: RunStore, data: st.DataObject) -> None:
    """As another program might write it: the seal is right, a value within is another."""
    path = data.draw(st.sampled_from([p for p in files_of(run) if p.suffix == ".json"]))
    body, was = (json.loads(SEAL.open(path.read_bytes())) for _ in range(2))
    whole = recalled(run)
    _replace(data, body)
    assume(body != was)
    with changed(path, SEAL.close(json.dumps(body))):
        try:
            again = recalled(run)
        except StoreDamaged as error:
            assert str(run.folder) in error.message
            return
    # Settings may be any that are allowed; but of the parameters nothing may be another.
    assert path.name in ("run.json", "head.json")
    if path.name == "run.json":
        assert (again[0], again[2]) == (whole[0], whole[2])


def _replace(data: st.DataObject, body: Any) -> None:
    """Put something else in the place of one value, anywhere in it."""
    while True:
        keys = list(body) if isinstance(body, dict) else list(range(len(body)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if not isinstance(body[key], dict | list) or data.draw(st.booleans()):
            body[key] = data.draw(JSON)
            return
        body = body[key]
