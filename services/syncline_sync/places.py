"""Where the shards of a run lie in its fragments: looked for once, and known from then on.

Ranks name the same boxes with every push and pull; to hand a search to the pool and back takes
longer than most searches. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from syncline_proto.layout import Layout, boxes_from_proto
from syncline_proto.spans import Extent, extent
from syncline_proto.v1 import sync_pb2 as pb

KNOWN_BOXES_MAX, KNOWN_BYTES_MAX = 64, 4096
"""Of a shard that is remembered; bytes are its extent's."""

KNOWN_MAX = 1024
"""Shards of a run: about 12 MiB with boxes and extents at their most, and all that names them."""

Boxes: TypeAlias = Sequence[pb.Box]

_Key: TypeAlias = tuple[int, tuple[bytes, ...]]


class Places:
    """Of one run. Its methods may be called from any thread."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._known: dict[_Key, Extent] = {}
        self._whole: dict[int, Extent] = {}

    def knows(self, fragment: int, boxes: Boxes) -> bool:
        """Whether ``of`` has them at hand."""
        return len(boxes) <= KNOWN_BOXES_MAX and _key(fragment, boxes) in self._known

    def of(self, fragment: int, boxes: Boxes) -> Extent:
        """Where boxes lie in a fragment's flat vector.

        Heavy, but for those that it ``knows``.

        Raises:
            InvalidRequest: a box is not one of the fragment's.
        """
        if len(boxes) > KNOWN_BOXES_MAX:
            return extent(self.layout, fragment, boxes_from_proto(boxes))
        key = _key(fragment, boxes)
        found = self._known.get(key)
        if found is None:
            understood = boxes_from_proto(boxes)
            found = extent(self.layout, fragment, understood)
            # What else is in their bytes may be long, and nobody has looked at it.
            is_plain = key == _key(fragment, [box.to_proto() for box in understood])
            if is_plain and found.nbytes <= KNOWN_BYTES_MAX:
                self._remember(key, found)
        return found

    def whole(self, fragment: int) -> Extent:
        """All of a fragment."""
        found = self._whole.get(fragment)
        if found is None:
            rows = np.array([[0, self.layout.fragments[fragment].numel]], np.int64)
            found = self._whole[fragment] = Extent.of(rows)
        return found

    def _remember(self, key: _Key, found: Extent) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()  # somebody sends ever new boxes; the others look once more
        self._known[key] = found


def _key(fragment: int, boxes: Boxes) -> _Key:
    return fragment, tuple(box.SerializeToString() for box in boxes)
