"""What is no file of ours is a ValueError, whatever of it is odd."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from syncline_sync.core.record import Saved
from syncline_sync.files import parse_safetensors
from syncline_sync.fragment_store import check_arrays
from syncline_sync.saved import saved_from_json, saved_to_json


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
def test_what_is_no_file_of_tensors_is_told(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_safetensors(data)


def test_arrays_of_another_kind_are_told_though_they_have_the_bytes() -> None:
    numbers = np.zeros(4, np.float32)
    check_arrays({"parameters": numbers, "momentum": numbers}, Saved(), 4)
    with pytest.raises(ValueError, match="does not hold 4 elements"):
        check_arrays({"parameters": np.zeros(8, np.uint16), "momentum": numbers}, Saved(), 4)


@pytest.mark.parametrize(
    "odd", [{"epoch": "1"}, {"last": {"a": {"seq": 1}}}, {"down": "fp8"}, {"statistics": []}]
)
def test_a_memory_of_other_types_is_told(odd: dict[str, Any]) -> None:
    text = saved_to_json(Saved(committed_tokens=3))
    assert saved_from_json(text) == Saved(committed_tokens=3)
    with pytest.raises(ValueError):
        saved_from_json(json.dumps(json.loads(text) | odd))
