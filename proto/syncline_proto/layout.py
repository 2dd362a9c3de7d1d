"""A run's layout: its tensors, how they are cut into fragments, and the fingerprint of it all.

Pure. A replica of any number of ranks describes its shards in boxes of the global tensors, so
replicas of different size meet in one run without a word about each other.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from syncline_proto.counts import (
    CORNERS_MAX,
    DIMENSIONS_MAX,
    NAME_MAX,
    check_boxes,
    check_counts,
)
from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

FRAGMENT_ELEMENTS_MAX = 1 << 26
"""64 Mi elements: 256 MiB in fp32."""

FROZEN_MAX = 64
"""Characters of ``frozen_sha256``: a SHA-256 in hex."""

SHOWN_MAX = 80
"""Characters that an error repeats of what a peer sent."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

EMBEDDINGS = "embeddings"
"""The name of the fragment with all that is before the blocks. Where it is cut into several, their
names begin so."""

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

    @property
    def edges(self) -> tuple[int, ...]:
        """Where each box begins in the flat vector, and where the last one ends."""
        return tuple(itertools.accumulate((box.numel for box in self.boxes), initial=0))


@dataclass(frozen=True)
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
        """SHA-256 (hex) of the canonical JSON form; docs/protocol.md gives the form.

        The first call is heavy where tensors are many.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
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
    check_counts(message)
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
    check_boxes(messages)
    return tuple(Box(b.tensor, tuple(b.offsets), tuple(b.sizes)) for b in messages)


def difference(ours: Layout, theirs: Layout) -> str | None:
    """Name the first difference between two layouts in one sentence; None if they are equal."""
    for i, (a, b) in enumerate(zip(ours.tensors, theirs.tensors, strict=False)):
        name = shown(a.name)
        if a.name != b.name:
            return f"tensor {i} is {name!r} in the run and {shown(b.name)!r} here."
        if a.shape != b.shape:
            return f"{name} has shape {list(a.shape)} in the run and {list(b.shape)} here."
        if a.dtype != b.dtype:
            return f"{name} is {a.dtype} in the run and {b.dtype} here."
        if a.aliases != b.aliases:
            run, here = shown(list(a.aliases)), shown(list(b.aliases))
            return f"{name} is tied to {run} in the run and {here} here."
    if len(ours.tensors) != len(theirs.tensors):
        return f"the run has {len(ours.tensors)} tensors and there are {len(theirs.tensors)} here."
    if ours.frozen_sha256 != theirs.frozen_sha256:
        return "the frozen parameters or saved buffers have other values than the run's."
    for i, (f, g) in enumerate(zip(ours.fragments, theirs.fragments, strict=False)):
        if f != g:
            run, here = shown(f.name), shown(g.name)
            return f"fragment {i} ({run}) is cut differently in the run than here ({here})."
    if len(ours.fragments) != len(theirs.fragments):
        return (
            f"the run has {len(ours.fragments)} fragments and there are "
            f"{len(theirs.fragments)} here."
        )
    return None


def shown(what: object) -> str:
    """A peer's words or numbers as an error repeats them: 80 characters at most."""
    text = what if isinstance(what, str) else repr(what)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def _check(layout: Layout) -> None:
    _check_tensors(layout.tensors)
    if len(layout.frozen_sha256) > FROZEN_MAX:
        raise InvalidRequest(
            f"layout.frozen_sha256: {len(layout.frozen_sha256)} characters, not {FROZEN_MAX}."
        )
    if not layout.fragments:
        raise InvalidRequest("layout.fragments: there must be at least one.")
    by_tensor: dict[int, list[Box]] = {}
    for f in layout.fragments:
        _check_name("layout.fragments", f.name)
        for box in f.boxes:
            if not 0 <= box.tensor < len(layout.tensors):
                number = shown(box.tensor)
                raise InvalidRequest(f"layout.fragments: {shown(f.name)}: no tensor {number}.")
            if any(size < 0 for size in box.sizes):
                raise InvalidRequest(
                    f"layout.fragments: {shown(f.name)}: a box has the sizes "
                    f"{shown(list(box.sizes))}, which must be 0 or more."
                )
            if len(box.sizes) != len(layout.tensors[box.tensor].shape):
                name = shown(layout.tensors[box.tensor].name)
                raise InvalidRequest(f"layout.fragments: a box of {name} is outside of it.")
            by_tensor.setdefault(box.tensor, []).append(box)
        if not 0 < f.numel <= FRAGMENT_ELEMENTS_MAX:
            raise InvalidRequest(
                f"layout.fragments: {shown(f.name)} has {shown(f.numel)} elements, "
                f"not 1 to {FRAGMENT_ELEMENTS_MAX}."
            )
    corners = sum(sum(1 << len(b.sizes) for b in cut) for cut in by_tensor.values() if len(cut) > 1)
    if corners > CORNERS_MAX:
        raise InvalidRequest(
            f"layout.fragments: the boxes have {corners} corners, more than {CORNERS_MAX} can be "
            "checked; cut the tensors into fewer boxes."
        )
    for i, t in enumerate(layout.tensors):
        _check_cover(t, by_tensor.get(i, []))


def _check_tensors(tensors: Sequence[TensorSpec]) -> None:
    names: set[str] = set()
    for t in tensors:
        for name in (t.name, *t.aliases):
            _check_name("layout.tensors", name)
            if name in names:
                raise InvalidRequest(f"layout.tensors: the name {shown(repr(name))} comes twice.")
            names.add(name)
        if t.dtype not in DTYPES:
            raise InvalidRequest(
                f"layout.tensors: {shown(t.name)}: dtype {shown(repr(t.dtype))} is none of "
                f"{DTYPES}."
            )
        if len(t.shape) > DIMENSIONS_MAX:
            raise InvalidRequest(
                f"layout.tensors: {shown(t.name)} has more than {DIMENSIONS_MAX} dimensions."
            )
        if any(size < 0 for size in t.shape):  # the wire has no such number, and JSON has
            raise InvalidRequest(
                f"layout.tensors: {shown(t.name)} has the shape {shown(list(t.shape))}, whose "
                "sizes must be 0 or more."
            )


def _check_name(field: str, name: str) -> None:
    if not 0 < len(name) <= NAME_MAX:
        raise InvalidRequest(
            f"{field}: the name {shown(repr(name))} has {len(name)} characters, "
            f"not 1 to {NAME_MAX}."
        )
    if _CONTROL.search(name):
        raise InvalidRequest(f"{field}: the name {shown(repr(name))} holds a control character.")


def _check_cover(tensor: TensorSpec, boxes: list[Box]) -> None:
    """Check that ``boxes`` tile ``tensor``: every element is in exactly one.

    In time linear in the corners, of which there are ``CORNERS_MAX`` at most: how often elements
    are covered is the running sum, along every dimension, of the boxes' corners (+1 or -1 by
    parity). So the boxes cover everything once if their corners, taken together, are those of the
    whole tensor.
    """
    whole = Box(boxes[0].tensor if boxes else 0, (0,) * len(tensor.shape), tensor.shape)
    for box in boxes:
        if not whole.holds(box):
            raise InvalidRequest(
                f"layout.fragments: a box of {shown(tensor.name)} is outside of it."
            )
    if boxes == [whole]:
        return
    corners: Counter[tuple[int, ...]] = Counter()
    for box in boxes:
        for corner, sign in _corners(box):
            corners[corner] += sign
    for corner, sign in _corners(whole):
        corners[corner] -= sign
    wrong = [corner for corner, excess in corners.items() if excess]
    if wrong:
        first = min(wrong)
        what = "is in no fragment" if corners[first] < 0 else "is in fragments twice"
        raise InvalidRequest(
            f"layout.fragments: the element of {shown(tensor.name)} at {shown(list(first))} {what}."
        )


def _corners(box: Box) -> Iterator[tuple[tuple[int, ...], int]]:
    """The corners of a box with their signs; an empty box has none, a scalar's is ()."""
    if box.numel == 0:
        return
    sides = [((a, 1), (a + n, -1)) for a, n in zip(box.offsets, box.sizes, strict=True)]
    for corner in itertools.product(*sides):
        yield tuple(at for at, _ in corner), math.prod(sign for _, sign in corner)
