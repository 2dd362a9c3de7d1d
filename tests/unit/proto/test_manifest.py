"""A manifest is whole or told: every bit of it counts, and it names only files of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_proto.depot import Depot
from syncline_proto.errors import (
    CheckpointDamaged,
    CheckpointError,
    ConfigError,
    InvalidRequest,
)
from syncline_proto.layout import layout_to_json
from syncline_proto.manifest import (
    Manifest,
    check_file,
    file_name,
    manifest_of,
    sealed,
    unsealed,
)
from syncline_proto.settings import RunSettings
from syncline_testing.service import flat_layout

LAYOUT = flat_layout(10, 2)


def rows() -> list[dict[str, Any]]:
    return [
        {
            "fragment": fragment,
            "file": file_name(fragment, 7),
            "bytes": 100,
            "crc32c": 7,
            "revision": 3,
            "committed_tokens": 40 + fragment,
        }
        for fragment in range(2)
    ]


def values(**changed: Any) -> dict[str, Any]:
    return {
        "id": "0" * 32,
        "run": "first",
        "revision": 3,
        "committed_tokens": 41,
        "created_at": 1.5,
        "fingerprint": LAYOUT.fingerprint(),
        "layout": json.loads(layout_to_json(LAYOUT)),
        "settings": RunSettings().model_dump(),
        "job": {"run": {"name": "first"}},
        "entries": rows(),
        **changed,
    }


WHOLE = sealed(Manifest.model_validate(values()))


def test_it_comes_back_as_it_was() -> None:
    back = unsealed(WHOLE, "there")
    assert back == Manifest.model_validate(values())
    assert back.parsed_layout == LAYOUT and back.bytes == 200
    assert json.loads(WHOLE)["checkpoint"]["run"] == "first", "JSON for whoever looks into it"


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(at: int, mask: int) -> None:
    data = bytearray(WHOLE)
    data[at] ^= mask
    with pytest.raises(CheckpointDamaged, match="there"):
        unsealed(bytes(data), "there")


@given(st.integers(0, len(WHOLE) - 1))
def test_no_torn_one_is_taken(end: int) -> None:
    with pytest.raises(CheckpointDamaged, match="there"):
        unsealed(WHOLE[:end], "there")


@pytest.mark.parametrize(
    "changed",
    [
        {"fingerprint": "00"},
        {"layout": {}},
        {"entries": rows()[:1]},
        {"entries": rows()[::-1]},
        {"entries": [rows()[0], {**rows()[1], "revision": 4}]},
        {"entries": [rows()[0], {**rows()[1], "file": "../00001-00000007.safetensors"}]},
        {"entries": [rows()[0], {**rows()[1], "bytes": -1}]},
        {"entries": [rows()[0], {**rows()[1], "file": rows()[0]["file"]}]},
        {"entries": [rows()[0], {**rows()[1], "crc32c": 8}]},
        {"created_at": 1e300},
        {"created_at": -1.0},
        {"run": "../up"},
        {"committed_tokens": 1},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_cannot_be_a_cut_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(CheckpointDamaged, match="there"):
        manifest_of(json.dumps(values(**changed)), "there")


def test_a_store_whose_package_is_missing_is_told_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    import fsspec  # noqa: F401

    known = sys.modules["fsspec.registry"]._registry  # another test may have used it
    monkeypatch.delitem(known, "s3", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'syncline\[s3\]'"):
        Depot("s3://bucket/folder")


@pytest.mark.parametrize(
    "url",
    ["relative", "relative/path", "", "http://host/path", "/a/../b", "s3://b::file:///c", "s3:///"],
)
def test_what_is_no_place_is_refused_as_it_was_written(url: str) -> None:
    for made in (Depot, Depot.at):
        with pytest.raises(InvalidRequest) as refused:
            made(url)
        assert repr(url) in refused.value.message


def test_an_address_that_ends_in_no_name_is_refused_as_it_was_written() -> None:
    for url in ("/", "/kept/Not-A-Name", "s3://bucket", "/a\nb"):
        with pytest.raises(InvalidRequest) as refused:
            Depot.at(url)
        assert repr(url) in refused.value.message


def test_a_checkpoint_may_lie_right_below_the_root() -> None:
    with pytest.raises(CheckpointError, match="^/no-such-checkpoint is not there"):
        Depot.at("/no-such-checkpoint").manifest()
    assert Depot("/").below("one").url == "/one"
    assert "tmp" in Depot("/").folders()


def test_a_directory_holds_what_was_put_and_what_failed_leaves_nothing(tmp_path: Path) -> None:
    depot = Depot(str(tmp_path)).below("one")
    depot.put("file", [b"a" * 10, b"b"])
    depot.create("made", b"whole")
    with pytest.raises(FileExistsError):
        depot.create("made", b"another")
    assert depot.sizes() == {"file": 11, "made": 5}
    assert b"".join(depot.pieces("made")) == b"whole"

    def broken() -> Any:
        yield b"some"
        raise CheckpointError("the source is gone")

    with pytest.raises(CheckpointError, match="the source is gone"):
        depot.put("torn", broken())
    assert "torn" not in depot.sizes()
    with pytest.raises(CheckpointError, match="the source is gone"):
        depot.below("two").put("torn", broken())
    assert Depot(str(tmp_path)).folders() == ["one"]
    with pytest.raises(InvalidRequest, match="is not a name"):
        depot.below("..")


def test_a_place_that_cannot_be_written_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    depot = Depot(str(tmp_path / "kept"))
    with pytest.raises(CheckpointError) as refused:
        depot.put("file", [b"some"])
    assert refused.value.message == (
        f"{tmp_path}/kept/file: it cannot be written (Permission denied); choose another place."
    )
    with pytest.raises(CheckpointError, match="bucket or folder is not there; make it"):
        depot.create("file", b"some")


def test_what_is_no_checkpoint_is_said_to_be_what_it_is(tmp_path: Path) -> None:
    for name, file in (("unsealed", "00000-1a2b3c4d.safetensors"), ("other", "notes.txt")):
        Depot(str(tmp_path)).below(name).put(file, [b"some"])
    said = {
        "unsealed": "no whole checkpoint.*its save goes on, or has failed",
        "other": "is no checkpoint: there is no checkpoint.json",
        "nowhere": "nowhere is not there; check the address",
    }
    for name, sentence in said.items():
        with pytest.raises(CheckpointError, match=f"(?i){sentence}"):
            Depot(str(tmp_path)).below(name).manifest()


def test_a_damaged_file_is_of_another_length_or_has_another_checksum() -> None:
    entry = Manifest.model_validate(values()).entries[0]
    check_file("/a/file", entry, entry.bytes, entry.crc32c)
    with pytest.raises(CheckpointDamaged, match="^/a/file is damaged: 3 bytes where.*says 100"):
        check_file("/a/file", entry, 3, entry.crc32c)
    with pytest.raises(CheckpointDamaged, match=f"its {entry.bytes} bytes have another checksum"):
        check_file("/a/file", entry, entry.bytes, entry.crc32c ^ 1)
