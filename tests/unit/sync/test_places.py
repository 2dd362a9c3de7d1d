"""Shards that were looked for once are known: the same spans, and no more of them than a bound."""

from __future__ import annotations

import numpy as np
import pytest

from syncline_proto.errors import InvalidRequest
from syncline_proto.layout import Box
from syncline_proto.spans import spans
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.places import KNOWN_BOXES_MAX, KNOWN_MAX, KNOWN_SPANS_MAX, Places
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
    assert np.array_equal(first, spans(LAYOUT, 0, [Box(0, (a,), (n,)) for a, n in cuts]))
    assert np.array_equal(places.of(0, boxes), first)
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1  # others read it, too


def test_a_rank_without_elements_is_not_the_whole_fragment() -> None:
    places = Places(LAYOUT)
    assert places.of(0, []).size == 0
    assert places.knows(0, []) and not places.knows(1, [])
    for fragment, spec in enumerate(LAYOUT.fragments):
        assert np.array_equal(places.whole(fragment), spans(LAYOUT, fragment, spec.boxes))


def test_what_is_refused_or_large_is_not_kept() -> None:
    places = Places(LAYOUT)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="not inside"):
            places.of(0, boxes_of((NUMEL, 1)))
    many = boxes_of(*((2 * i, 1) for i in range(KNOWN_BOXES_MAX + 1)))
    assert len(places.of(0, many)) == KNOWN_BOXES_MAX + 1 <= KNOWN_SPANS_MAX
    assert not places.knows(0, many)


def test_no_more_shards_are_known_than_a_bound() -> None:
    places = Places(LAYOUT)
    for start in range(KNOWN_MAX + 7):
        places.of(0, boxes_of((start, 1)))
    assert len(places._known) == 7
    assert np.array_equal(places.of(0, boxes_of((1, 1))), [[1, 1]])
