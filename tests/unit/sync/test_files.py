"""What is no file of ours is a ValueError, whatever of it is odd."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline_proto.errors import StoreDamaged, StoreError
from syncline_sync.core.record import Saved
from syncline_sync.core.window import Window
from syncline_sync.entries import check_arrays
from syncline_sync.files import (
    array_of,
    arrays_of,
    checksum_of,
    is_there,
    make_folder,
    make_mark,
    reading,
    replace_file,
)
from syncline_sync.saved import COUNT_MAX, check_numbers, saved_from_json, saved_to_json


def file_of(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def row(dtype: str = "F32", begin: Any = 0, end: Any = 8) -> dict[str, Any]:
    return {"parameters": {"dtype": dtype, "shape": [2], "data_offsets": [begin, end]}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        file_of("a text"),
        file_of([1]),
        file_of({"parameters": None}),
        file_of(row(begin=2**70, end=2**71)),
        file_of(row(begin="0")),
        file_of(row(dtype="F64"), bytes(8)),
        file_of(row(end=64), bytes(8)),
        file_of({"parameters": {"dtype": "F32"}}),
    ],
)
def test_what_is_no_file_of_tensors_is_told(tmp_path: Path, data: bytes) -> None:
    """Before memory is taken for it."""
    (tmp_path / "file").write_bytes(data)
    with reading(tmp_path / "file") as file, pytest.raises(ValueError):
        array_of(file, arrays_of(file)[0]["parameters"])


def test_an_array_may_lie_anywhere_in_its_file(tmp_path: Path) -> None:
    body = np.arange(6, dtype=np.float32)
    data = file_of(row(begin=8, end=20), body.tobytes())
    (tmp_path / "file").write_bytes(data)
    with reading(tmp_path / "file") as file:
        read = array_of(file, place := arrays_of(file)[0]["parameters"])
        os.truncate(tmp_path / "file", len(data) - 5)
        with pytest.raises(ValueError, match="ends"):
            array_of(file, place)
    assert read.tolist() == [2.0, 3.0, 4.0]
    read += 1.0  # it is ours


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "folder")
    for name in ("folder", "none"):
        with pytest.raises(StoreDamaged, match=name), reading(tmp_path / name) as file:
            checksum_of(file)


def test_what_the_disk_does_not_tell_of_is_named_and_not_taken_for_missing(tmp_path: Path) -> None:
    """As in a folder that may not be searched, which root may."""
    untold = tmp_path / ("x" * 300)
    with pytest.raises(StoreDamaged, match=r"Cannot read .*x: File name too long\."):
        is_there(untold)
    assert not is_there(tmp_path / "x") and is_there(tmp_path)
    for write in (make_folder, make_mark, lambda path: replace_file(path, b"")):
        with pytest.raises(StoreError, match=r"Cannot write .*x: File name too long\."):
            write(untold)


def test_arrays_of_another_kind_are_told_though_they_have_the_bytes() -> None:
    numbers = np.zeros(4, np.float32)
    check_arrays({"parameters": numbers, "momentum": numbers}, Saved(), 4)
    with pytest.raises(ValueError, match="does not hold 4 elements"):
        check_arrays({"parameters": np.zeros(8, np.uint16), "momentum": numbers}, Saved(), 4)


@pytest.mark.parametrize(
    "odd",
    [
        *({"epoch": "1"}, {"last": {"a": {"seq": 1}}}, {"down": "fp8"}, {"statistics": []}),
        *({"committed_tokens": COUNT_MAX + 1}, {"revision": -1}),
    ],
)
def test_a_memory_of_other_types_or_sizes_is_told(odd: dict[str, Any]) -> None:
    text = saved_to_json(Saved(committed_tokens=3))
    assert saved_from_json(text) == Saved(committed_tokens=3)
    with pytest.raises(ValueError):
        saved_from_json(json.dumps(json.loads(text) | odd))


@pytest.mark.parametrize(
    "odd", [Window(4, recent=((1.0, 0),)), Window(0, done=1), Window(2, done=2), Window(2, done=3)]
)
def test_a_window_that_no_run_comes_to_is_told(odd: Window) -> None:
    """A push in it would end the service, or be stale whatever its base."""
    check_numbers(Saved(window=Window(2, done=1, recent=((1.0, 1),))))
    with pytest.raises(ValueError, match="window"):
        check_numbers(Saved(window=odd))
