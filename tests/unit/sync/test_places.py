"""Shards that were looked for once are known: the same spans, and no more of them than a bound."""

from __future__ import annotations

import numpy as np
import pytest

from syncline_proto.errors import InvalidRequest
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.spans import spans
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.places import KNOWN_BOXES_MAX, KNOWN_BYTES_MAX, KNOWN_MAX, Places
from syncline_testing.service import flat_layout

NUMEL = 100_000
LAYOUT = flat_layout(NUMEL, 2)


def boxes_of(*cuts: tuple[int, int], tensor: int = 0) -> list[pb.Box]:
    return [Box(tensor, (start,), (size,)).to_proto() for start, size in cuts]


def test_what_was_found_once_is_known_and_the_same() -> None:
    places, cuts = Places(LAYOUT), [(5, 10), (90, 1), (0, 5)]
    boxes = boxes_of(*cuts)
    assert not places.knows(0, boxes)
    first = places.of(0, boxes)
    assert places.knows(0, boxes) and not places.knows(0, boxes[:2]) and not places.knows(1, boxes)
    assert np.array_equal(first.spans(), spans(LAYOUT, 0, [Box(0, (a,), (n,)) for a, n in cuts]))
    assert places.of(0, boxes) is first
    with pytest.raises(ValueError, match="read-only"):
        first.spans()[0, 0] = 1  # others read it, too


def test_a_rank_without_elements_is_not_the_whole_fragment() -> None:
    places = Places(LAYOUT)
    assert places.of(0, []).elements == 0
    assert places.knows(0, []) and not places.knows(1, [])
    for fragment, spec in enumerate(LAYOUT.fragments):
        assert np.array_equal(places.whole(fragment).spans(), spans(LAYOUT, fragment, spec.boxes))


def test_what_is_refused_or_large_is_not_kept() -> None:
    places = Places(LAYOUT)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="not inside"):
            places.of(0, boxes_of((NUMEL, 1)))
    many = boxes_of(*((2 * i, 1) for i in range(KNOWN_BOXES_MAX + 1)))
    assert places.of(0, many).span_count == KNOWN_BOXES_MAX + 1
    assert places.of(0, many).nbytes <= KNOWN_BYTES_MAX
    assert not places.knows(0, many)


def test_no_more_shards_are_known_than_a_bound() -> None:
    places = Places(LAYOUT)
    for start in range(KNOWN_MAX + 7):
        places.of(0, boxes_of((start, 1)))
    assert len(places._known) == 7
    assert places.of(0, boxes_of((1, 1))).spans().tolist() == [[1, 1]]


def test_what_is_kept_of_a_shard_is_no_larger_than_its_boxes_are() -> None:
    """A column of half a million rows is found, and known, in a few numbers."""
    shape = (1 << 19, 2)
    whole = Box(0, (0, 0), shape)
    layout = Layout((TensorSpec("w", shape, "float32"),), (FragmentSpec("f", (whole,)),))
    column = [Box(0, (0, 1), (shape[0], 1)).to_proto()]
    places = Places(layout)
    found = places.of(0, column)
    assert (found.elements, found.span_count) == (shape[0], shape[0])
    assert found.nbytes <= 33 and places.knows(0, column)
    assert np.array_equal(found.between(7, 10), [[15, 1], [17, 1], [19, 1]])


def test_boxes_with_fields_that_nobody_knows_are_found_and_not_kept() -> None:
    """Such a field takes as much memory as who sends it likes."""
    (plain,) = boxes_of((1, 1))
    strange = pb.Box.FromString(plain.SerializeToString() + b"\xc2\x3e\x02ab")
    assert strange.ByteSize() > plain.ByteSize()
    places = Places(LAYOUT)
    assert places.of(0, [strange]).spans().tolist() == [[1, 1]]
    assert not places.knows(0, [strange]) and not places._known
