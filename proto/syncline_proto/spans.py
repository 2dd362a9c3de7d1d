"""Where a rank's shard lies in its fragment: in spans.

A span is a stretch of the flat vector without a gap. A box of a hundred bytes may fall into a
million of them. So what is kept of a shard is its extent, as large as its boxes; spans are made of
it where they are used, and a shard in too many is refused. Pure numpy.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from syncline_proto.errors import InvalidRequest
from syncline_proto.layout import Box, FragmentSpec, Layout, shown

Spans: TypeAlias = npt.NDArray[np.int64]
"""[k, 2]: start and length in elements, none empty."""

SPANS_MAX = 1 << 20
"""Of one shard: a bound on what a strangely cut one can cost."""

LOOKS_MAX = 1 << 20
"""Of one shard: how many boxes of its fragment are looked at to find those that hold its own."""

_Loops: TypeAlias = tuple[tuple[int, int], ...]
"""Of one row: (count, stride), the outermost first."""


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """Where a shard's payload lies in its fragment's flat vector, row by row in payload order.

    A row is a span, or the same one again and again: along its loops, none or some. Nobody writes
    to it.
    """

    rows: Spans
    """int64 [n, 2]: (start of the first span, length of each); neighbours are joined."""
    depths: npt.NDArray[np.uint8]
    """[n]: how many loops each row has."""
    loops: npt.NDArray[np.int64]
    """int64 [all of them, 2]: (count, stride), row after row, of each the outermost first."""
    elements: int
    span_count: int
    """How many spans it has at most; those of looped rows may still join others."""

    @classmethod
    def of(cls, rows: Spans, loops: Sequence[_Loops] = ()) -> Extent:
        """Of rows, none empty, and the loops of each; without any where there are none given."""
        depths = np.zeros(len(rows), np.uint8)
        depths[: len(loops)] = [len(along) for along in loops]
        turns = np.array([loop for along in loops for loop in along], np.int64).reshape(-1, 2)
        for array in (rows, depths, turns):
            array.flags.writeable = False  # many may read them
        counts = _counts(depths, turns)
        return cls(rows, depths, turns, int((counts * rows[:, 1]).sum()), int(counts.sum()))

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.depths.nbytes + self.loops.nbytes

    def is_like(self, other: Extent) -> bool:
        mine, its = (self.rows, self.depths, self.loops), (other.rows, other.depths, other.loops)
        return all(map(np.array_equal, mine, its))

    def spans(self) -> Spans:
        """All of it: int64 [k, 2], (start, length), neighbours joined. Heavy: 16 bytes a span."""
        return self.between(0, self.elements) if self.loops.size else self.rows

    def between(self, begin: int, end: int) -> Spans:
        """The elements from ``begin`` to ``end`` of the payload, not none; as ``spans``."""
        counts = _counts(self.depths, self.loops)
        sizes = counts * self.rows[:, 1]
        ends = np.cumsum(sizes)
        first = int(np.searchsorted(ends, begin, side="right"))
        last = int(np.searchsorted(ends, end, side="left"))
        rows, depths = self.rows[first : last + 1], self.depths[first : last + 1]
        loops_end = np.cumsum(self.depths, dtype=np.int64)[first : last + 1]
        skip, skipped = divmod(begin - int(ends[first] - sizes[first]), int(rows[0, 1]))
        spare, beyond = divmod(int(ends[last]) - end, int(rows[-1, 1]))
        wanted = counts[first : last + 1]
        wanted[-1] -= spare
        wanted[0] -= skip
        row = np.repeat(np.arange(len(rows)), wanted)
        number = np.arange(row.size) - np.repeat(np.cumsum(wanted) - wanted, wanted)
        number[: wanted[0]] += skip
        found = rows[row]
        for inner in range(int(depths.max())):
            along = np.tile((1, 0), (len(rows), 1))
            along[depths > inner] = self.loops[loops_end[depths > inner] - 1 - inner]
            number, turn = np.divmod(number, along[row, 0])
            found[:, 0] += turn * along[row, 1]
        found[0] += (skipped, -skipped)
        found[-1, 1] -= beyond
        return _joined(found)


def _counts(depths: npt.NDArray[np.uint8], loops: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many spans each row stands for: int64 [n]."""
    counts = np.ones(len(depths), np.int64)
    looped = np.nonzero(depths)[0]
    first = (np.cumsum(depths, dtype=np.int64) - depths)[looped]
    counts[looped] = np.multiply.reduceat(loops[:, 0], first)
    return counts


NOWHERE = Extent.of(np.empty((0, 2), np.int64))
"""A shard without elements."""


def extent(layout: Layout, fragment: int, boxes: Iterable[Box]) -> Extent:
    """Where a shard's payload lies in the fragment's flat vector.

    Raises:
        InvalidRequest: a box is not inside one box of the fragment; they have more elements than
            it has, fall into too many spans, or are too hard to find.
    """
    spec = layout.fragments[fragment]
    parts = _parts(spec)
    rows: list[tuple[int, int]] = []
    loops: list[_Loops] = []
    spans_left, looks_left, elements_left = SPANS_MAX, LOOKS_MAX, spec.numel
    for box in boxes:
        part = parts.get(box.tensor)
        for start, whole in part.candidates(box) if part else ():
            looks_left -= 1
            if whole.holds(box):
                if box.numel:
                    row, along = _row(start, whole, box)
                    elements_left -= box.numel
                    spans_left -= math.prod(count for count, _ in along)
                    rows.append(row)
                    loops.append(along)
                break
            if looks_left <= 0:
                raise InvalidRequest(
                    f"boxes: it takes more than {LOOKS_MAX} looks to find them in fragment "
                    f"{fragment}, which is cut too finely for them; send fewer boxes."
                )
        else:
            raise InvalidRequest(
                f"boxes: tensor {box.tensor}, offsets {shown(list(box.offsets))}, sizes "
                f"{shown(list(box.sizes))} is not inside fragment {fragment} ({shown(spec.name)})."
            )
        if elements_left < 0:
            raise InvalidRequest("boxes: the shard has more elements than the fragment.")
        if spans_left < 0:
            raise InvalidRequest(f"boxes: the shard falls into more than {SPANS_MAX} spans.")
    return _extent(rows, loops)


def spans(layout: Layout, fragment: int, boxes: Iterable[Box]) -> Spans:
    """All spans of a shard, as ``extent``: int64 [k, 2], in payload order; neighbours joined."""
    return extent(layout, fragment, boxes).spans()


def check_tiling(numel: int, shard_spans: Sequence[Spans]) -> None:
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


def _row(start: int, whole: Box, box: Box) -> tuple[tuple[int, int], _Loops]:
    """A box in the flat vector where ``whole`` begins at ``start``, as a row and its loops."""
    dims = len(box.sizes)
    tail = dims  # dimensions from `tail` on are taken whole, so they are contiguous
    while tail > 0 and box.sizes[tail - 1] == whole.sizes[tail - 1]:
        tail -= 1
    tail = max(tail - 1, 0)
    strides = [math.prod(whole.sizes[d + 1 :]) for d in range(dims)]
    base = start + sum((box.offsets[d] - whole.offsets[d]) * strides[d] for d in range(dims))
    loops: list[tuple[int, int]] = []
    for count, stride in zip(box.sizes[:tail], strides, strict=False):
        if loops and loops[-1][1] == count * stride:
            loops[-1] = (loops[-1][0] * count, stride)
        elif count > 1:
            loops.append((count, stride))
    return (base, math.prod(box.sizes[tail:])), tuple(loops)


def _extent(rows: list[tuple[int, int]], loops: list[_Loops]) -> Extent:
    """Join rows without loops that follow one another without a gap."""
    every = np.array(rows, np.int64).reshape(-1, 2)
    if not any(loops):
        return Extent.of(_joined(every))
    heads = np.nonzero(_begins(every, np.array([bool(along) for along in loops])))[0]
    lengths = np.add.reduceat(every[:, 1], heads)
    found = np.stack([every[heads, 0], lengths], axis=1)
    return Extent.of(found, [loops[head] for head in heads.tolist()])


def _joined(every: Spans) -> Spans:
    """Join spans that follow one another without a gap."""
    if len(every) < 2:
        return every
    heads = np.nonzero(_begins(every, np.zeros(len(every), np.bool_)))[0]
    return np.stack([every[heads, 0], np.add.reduceat(every[:, 1], heads)], axis=1)


def _begins(every: Spans, looped: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which rows do not go on where the one before ends; ``looped`` ones stand alone."""
    gaps = every[1:, 0] != every[:-1, 0] + every[:-1, 1]
    return np.append(True, gaps | looped[1:] | looped[:-1])
