"""Where a rank's shard lies in its fragment: spans, stretches of the flat vector without a gap.

Pure numpy. Whoever counts them is protected: a shard cut into too many is refused before memory
is taken for it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from syncline_proto.errors import InvalidRequest
from syncline_proto.layout import Box, FragmentSpec, Layout, shown

SPANS_MAX = 1 << 20
"""Of one shard: a bound on what a strangely cut one can cost."""

LOOKS_MAX = 1 << 20
"""Of one shard: how many boxes of its fragment are looked at to find those that hold its own."""


def spans(layout: Layout, fragment: int, boxes: Iterable[Box]) -> npt.NDArray[np.int64]:
    """Where a shard's payload lies in the fragment's flat vector.

    Returns:
        int64 [k, 2]: (start, length) in the flat vector, in payload order; neighbours are joined.

    Raises:
        InvalidRequest: a box is not inside one box of the fragment.
    """
    spec = layout.fragments[fragment]
    parts = _parts(spec)
    found: list[npt.NDArray[np.int64]] = [np.empty((0, 2), np.int64)]
    room, looks = SPANS_MAX, LOOKS_MAX
    for box in boxes:
        part = parts.get(box.tensor)
        for start, whole in part.candidates(box) if part else ():
            looks -= 1
            if whole.holds(box):
                found.append(_spans_in(start, whole, box, room))
                room -= len(found[-1])
                break
            if looks <= 0:
                raise InvalidRequest(
                    f"boxes: it takes more than {LOOKS_MAX} looks to find them in fragment "
                    f"{fragment}, which is cut too finely for them; send fewer boxes."
                )
        else:
            raise InvalidRequest(
                f"boxes: tensor {box.tensor}, offsets {shown(list(box.offsets))}, sizes "
                f"{shown(list(box.sizes))} is not inside fragment {fragment} ({shown(spec.name)})."
            )
    return _joined(np.concatenate(found))


def check_tiling(numel: int, shard_spans: Sequence[npt.NDArray[np.int64]]) -> None:
    """Check that the spans of all ranks cover ``numel`` elements exactly once.

    Raises:
        InvalidRequest: an element is missing or comes twice.
    """
    every = np.concatenate([np.empty((0, 2), np.int64), *shard_spans])
    every = every[np.argsort(every[:, 0], kind="stable")]
    ends = every[:, 0] + every[:, 1]
    begins = np.append(every[:, 0], numel)
    expected = np.concatenate([[0], ends])
    wrong = np.nonzero(begins != expected)[0]
    if wrong.size:
        at = int(wrong[0])
        what = "missing" if begins[at] > expected[at] else "covered twice"
        raise InvalidRequest(
            f"boxes: the ranks do not tile the fragment: element "
            f"{int(min(begins[at], expected[at]))} of {numel} is {what}."
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """What a fragment has of one tensor: boxes, each with its start in the flat vector.

    They are sorted by their first corner, the dimension that is cut most finely first. So the box
    that holds another begins at or before it, and in most cuts it is the last one that does.
    """

    dimensions: tuple[int, ...]
    """In the order in which they are compared."""
    corners: list[tuple[int, ...]]
    boxes: list[tuple[int, Box]]

    @classmethod
    def of(cls, boxes: list[tuple[int, Box]]) -> _Part:
        offsets = [box.offsets for _, box in boxes]
        places = [len(set(column)) for column in zip(*offsets, strict=True)]
        dimensions = tuple(sorted(range(len(places)), key=lambda d: -places[d]))
        keyed = [(tuple(at[d] for d in dimensions), i) for i, at in enumerate(offsets)]
        keyed.sort()
        return cls(dimensions, [key for key, _ in keyed], [boxes[i] for _, i in keyed])

    def candidates(self, box: Box) -> Iterator[tuple[int, Box]]:
        """The boxes that may hold ``box``, the likeliest first."""
        if len(box.sizes) == len(self.dimensions):
            corner = tuple(box.offsets[d] for d in self.dimensions)
            for i in range(bisect_right(self.corners, corner) - 1, -1, -1):
                yield self.boxes[i]


def _parts(spec: FragmentSpec) -> dict[int, _Part]:
    """A fragment's boxes by tensor."""
    by_tensor: dict[int, list[tuple[int, Box]]] = {}
    flat = 0
    for whole in spec.boxes:
        by_tensor.setdefault(whole.tensor, []).append((flat, whole))
        flat += whole.numel
    return {tensor: _Part.of(boxes) for tensor, boxes in by_tensor.items()}


def _spans_in(start: int, whole: Box, box: Box, room: int) -> npt.NDArray[np.int64]:
    """Spans of ``box`` in the flat vector where ``whole`` begins at ``start``; ``room`` at most."""
    if box.numel == 0:
        return np.empty((0, 2), np.int64)
    dims = len(box.sizes)
    tail = dims  # dimensions from `tail` on are taken whole, so they are contiguous
    while tail > 0 and box.sizes[tail - 1] == whole.sizes[tail - 1]:
        tail -= 1
    tail = max(tail - 1, 0)
    if math.prod(box.sizes[:tail]) > room:
        raise InvalidRequest(f"boxes: the shard falls into more than {SPANS_MAX} pieces.")
    strides = [math.prod(whole.sizes[d + 1 :]) for d in range(dims)]
    length = math.prod(box.sizes[tail:])
    base = start + sum((box.offsets[d] - whole.offsets[d]) * strides[d] for d in range(dims))
    offsets = np.array([base], np.int64)
    for d in range(tail):
        steps = np.arange(box.sizes[d], dtype=np.int64) * strides[d]
        offsets = (offsets[:, None] + steps[None, :]).reshape(-1)
    return np.stack([offsets, np.full_like(offsets, length)], axis=1)


def _joined(every: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Join spans that follow one another without a gap."""
    if len(every) < 2:
        return every
    new = np.append(True, every[1:, 0] != every[:-1, 0] + every[:-1, 1])
    heads = np.nonzero(new)[0]
    return np.stack([every[heads, 0], np.add.reduceat(every[:, 1], heads)], axis=1)
