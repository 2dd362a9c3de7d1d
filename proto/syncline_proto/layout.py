"""A run's layout: its tensors, how they are cut into fragments, and the fingerprint of it all.

Pure. A replica of any number of ranks describes its shards in boxes of the global tensors, so
replicas of different size meet in one run without a word about each other.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

FRAGMENT_ELEMENTS_MAX = 1 << 26
"""64 Mi elements: 256 MiB in fp32."""

TENSORS_MAX = 100_000
FRAGMENTS_MAX = 100_000
BOXES_MAX = 100_000
"""Boxes in one fragment, or in one push."""

DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True)
class Box:
    """``sizes[d]`` elements from ``offsets[d]`` in each dimension d of tensor number ``tensor``."""

    tensor: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    def holds(self, other: Box) -> bool:
        """Whether every element of ``other`` is in this box."""
        return self.tensor == other.tensor and all(
            a <= b and b + m <= a + n
            for a, n, b, m in zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        )

    def to_proto(self) -> pb.Box:
        return pb.Box(tensor=self.tensor, offsets=self.offsets, sizes=self.sizes)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A trainable tensor under its canonical name; ``aliases`` are the names tied to it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FragmentSpec:
    """The unit of synchronisation; its flat vector is its boxes, row-major, one after another."""

    name: str
    boxes: tuple[Box, ...]

    @property
    def numel(self) -> int:
        return sum(box.numel for box in self.boxes)


@dataclass(frozen=True, slots=True)
class Layout:
    """Invariant: the fragments' boxes cover every tensor exactly once (checked on creation)."""

    tensors: tuple[TensorSpec, ...]
    fragments: tuple[FragmentSpec, ...]
    frozen_sha256: str = ""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def numel(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the canonical JSON form; docs/protocol.md gives the form."""
        return hashlib.sha256(layout_to_json(self).encode()).hexdigest()

    def to_proto(self) -> pb.Layout:
        return pb.Layout(
            tensors=[
                pb.Tensor(name=t.name, shape=t.shape, dtype=t.dtype, aliases=t.aliases)
                for t in self.tensors
            ],
            fragments=[
                pb.Fragment(name=f.name, boxes=[box.to_proto() for box in f.boxes])
                for f in self.fragments
            ],
            frozen_sha256=self.frozen_sha256,
        )


def layout_from_proto(message: pb.Layout) -> Layout:
    """Read and check a layout.

    Raises:
        InvalidRequest: a rule is broken; the message names the field.
    """
    if not 0 < len(message.tensors) <= TENSORS_MAX:
        raise InvalidRequest(f"layout.tensors: {len(message.tensors)} is not 1 to {TENSORS_MAX}.")
    if not 0 < len(message.fragments) <= FRAGMENTS_MAX:
        raise InvalidRequest(
            f"layout.fragments: {len(message.fragments)} is not 1 to {FRAGMENTS_MAX}."
        )
    return Layout(
        tensors=tuple(
            TensorSpec(t.name, tuple(t.shape), t.dtype, tuple(t.aliases)) for t in message.tensors
        ),
        fragments=tuple(FragmentSpec(f.name, boxes_from_proto(f.boxes)) for f in message.fragments),
        frozen_sha256=message.frozen_sha256,
    )


def layout_to_json(layout: Layout) -> str:
    """The canonical JSON form: no white space, ASCII, keys in this order."""
    form = {
        "tensors": [[t.name, list(t.shape), t.dtype, list(t.aliases)] for t in layout.tensors],
        "fragments": [
            [f.name, [[b.tensor, list(b.offsets), list(b.sizes)] for b in f.boxes]]
            for f in layout.fragments
        ],
        "frozen_sha256": layout.frozen_sha256,
    }
    return json.dumps(form, separators=(",", ":"), ensure_ascii=True)


def layout_from_json(text: str) -> Layout:
    """Read what ``layout_to_json`` wrote."""
    form = json.loads(text)
    return Layout(
        tensors=tuple(
            TensorSpec(name, tuple(shape), dtype, tuple(aliases))
            for name, shape, dtype, aliases in form["tensors"]
        ),
        fragments=tuple(
            FragmentSpec(name, tuple(Box(t, tuple(o), tuple(n)) for t, o, n in boxes))
            for name, boxes in form["fragments"]
        ),
        frozen_sha256=form["frozen_sha256"],
    )


def boxes_from_proto(messages: Sequence[pb.Box]) -> tuple[Box, ...]:
    """Read boxes, each with as many offsets as sizes.

    Raises:
        InvalidRequest: too many, or a box whose offsets and sizes differ in number.
    """
    if len(messages) > BOXES_MAX:
        raise InvalidRequest(f"boxes: {len(messages)} is more than {BOXES_MAX}.")
    boxes = tuple(Box(b.tensor, tuple(b.offsets), tuple(b.sizes)) for b in messages)
    for box in boxes:
        if len(box.offsets) != len(box.sizes):
            raise InvalidRequest(f"boxes: tensor {box.tensor}: offsets and sizes differ in number.")
    return boxes


def difference(ours: Layout, theirs: Layout) -> str | None:
    """Name the first difference between two layouts in one sentence; None if they are equal."""
    for i, (a, b) in enumerate(zip(ours.tensors, theirs.tensors, strict=False)):
        if a.name != b.name:
            return f"tensor {i} is {a.name!r} in the run and {b.name!r} here."
        if a.shape != b.shape:
            return f"{a.name} has shape {list(a.shape)} in the run and {list(b.shape)} here."
        if a.dtype != b.dtype:
            return f"{a.name} is {a.dtype} in the run and {b.dtype} here."
        if a.aliases != b.aliases:
            return f"{a.name} is tied to {list(a.aliases)} in the run and {list(b.aliases)} here."
    if len(ours.tensors) != len(theirs.tensors):
        return f"the run has {len(ours.tensors)} tensors and there are {len(theirs.tensors)} here."
    if ours.frozen_sha256 != theirs.frozen_sha256:
        return "the frozen tensors have other values than the run's."
    for i, (f, g) in enumerate(zip(ours.fragments, theirs.fragments, strict=False)):
        if f != g:
            return f"fragment {i} ({f.name}) is cut differently in the run than here ({g.name})."
    if len(ours.fragments) != len(theirs.fragments):
        return (
            f"the run has {len(ours.fragments)} fragments and there are "
            f"{len(theirs.fragments)} here."
        )
    return None


def _check(layout: Layout) -> None:
    names: set[str] = set()
    for t in layout.tensors:
        for name in (t.name, *t.aliases):
            if not name or len(name) > 1024 or name in names:
                raise InvalidRequest(f"layout.tensors: the name {name!r} is empty or comes twice.")
            names.add(name)
        if t.dtype not in DTYPES:
            raise InvalidRequest(
                f"layout.tensors: {t.name}: dtype {t.dtype!r} is none of {DTYPES}."
            )
        if len(t.shape) > 8:
            raise InvalidRequest(f"layout.tensors: {t.name} has more than 8 dimensions.")
    if not layout.fragments:
        raise InvalidRequest("layout.fragments: there must be at least one.")
    by_tensor: dict[int, list[Box]] = {}
    for f in layout.fragments:
        if not f.name or len(f.name) > 1024:
            raise InvalidRequest("layout.fragments: every fragment needs a name.")
        if not 0 < f.numel <= FRAGMENT_ELEMENTS_MAX:
            raise InvalidRequest(
                f"layout.fragments: {f.name} has {f.numel} elements, "
                f"not 1 to {FRAGMENT_ELEMENTS_MAX}."
            )
        for box in f.boxes:
            if box.tensor >= len(layout.tensors):
                raise InvalidRequest(f"layout.fragments: {f.name}: no tensor {box.tensor}.")
            by_tensor.setdefault(box.tensor, []).append(box)
    for i, t in enumerate(layout.tensors):
        _check_cover(t, by_tensor.get(i, []))


def _check_cover(tensor: TensorSpec, boxes: list[Box]) -> None:
    """Check that ``boxes`` tile ``tensor``: every element is in exactly one.

    In time linear in the boxes: how often elements are covered is the running sum, along every
    dimension, of the boxes' corners (+1 or -1 by parity). So the boxes cover everything once if
    their corners, taken together, are those of the whole tensor.
    """
    whole = Box(boxes[0].tensor if boxes else 0, (0,) * len(tensor.shape), tensor.shape)
    corners: Counter[tuple[int, ...]] = Counter()
    for box in boxes:
        if len(box.sizes) != len(tensor.shape) or not whole.holds(box):
            raise InvalidRequest(f"layout.fragments: a box of {tensor.name} is outside of it.")
        corners.update(_corners(box))
    corners.subtract(_corners(whole))
    wrong = [corner for corner, excess in corners.items() if excess]
    if wrong:
        first = min(wrong)
        what = "is in no fragment" if corners[first] < 0 else "is in fragments twice"
        raise InvalidRequest(
            f"layout.fragments: the element of {tensor.name} at {list(first)} {what}."
        )


def _corners(box: Box) -> Counter[tuple[int, ...]]:
    """The corners of a box with their signs; an empty box has none, a scalar's is ()."""
    if box.numel == 0:
        return Counter()
    sides = [((a, 1), (a + n, -1)) for a, n in zip(box.offsets, box.sizes, strict=True)]
    return Counter(
        {
            tuple(at for at, _ in corner): math.prod(sign for _, sign in corner)
            for corner in itertools.product(*sides)
        }
    )
