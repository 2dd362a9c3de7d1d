"""What is asked: pulls, and openings of a run, whole or spoilt, as the bytes of their message.

Each starts as a valid one and is then changed in up to three places: a field, a number of a box, a
tensor or fragment of the layout, a byte. Some changes leave it valid; which, ``replies`` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import strategies as st

from fuzz.drawn import HUGE, NAMES, NUMBERS, spoil_boxes, spoilt_bytes
from fuzz.streams import COLUMNS, CUT, LAYOUT, REVISION, RUN
from syncline_proto.layout import DTYPES
from syncline_proto.v1 import sync_pb2 as pb

FRESH = "fresh"
"""A run that nobody has opened yet."""

INSTANCE = "service"
"""What the service calls itself, so that names of values can be drawn."""

HELD = {
    f"{INSTANCE}/{RUN}/{fragment}/1/{revision}": (fragment, revision)
    for fragment in range(len(LAYOUT.fragments))
    for revision in range(REVISION + 1)
}
"""Names of values that somebody may hold: of which fragment and revision."""

HELD_NAMES = st.one_of(st.sampled_from([*HELD, f"{INSTANCE}/{RUN}/0/2/0", "/" * 5]), NAMES)

TEXTS = st.one_of(
    NAMES, st.sampled_from(["w", "s", "w\x7f", "w\x9f", "é" * 1024, "n" * 1025, "float32"])
)
"""What a tensor or fragment may be called, or not."""

SHAPES = st.one_of(
    st.lists(st.integers(0, 4), max_size=4), st.lists(NUMBERS, max_size=10), st.lists(HUGE)
)

Tables: TypeAlias = dict[str, Callable[[st.DrawFn], Any]]

PULL_FIELDS: Tables = {
    "run": lambda draw: draw(st.one_of(NAMES, st.just(FRESH))),
    "replica": lambda draw: draw(NAMES),
    "held": lambda draw: draw(HELD_NAMES),
    "epoch": lambda draw: draw(NUMBERS),
    "incarnation": lambda draw: draw(NUMBERS),
    "fragment": lambda draw: draw(NUMBERS) % 2**32,
    "revision": lambda draw: draw(NUMBERS),
    "gradient_step": lambda draw: draw(NUMBERS),
    "newest": lambda draw: draw(st.booleans()),
    "header_only": lambda draw: draw(st.booleans()),
}
OPEN_FIELDS: Tables = {
    "run": lambda draw: draw(NAMES),
    "replica": lambda draw: draw(NAMES),
    "incarnation": lambda draw: draw(NUMBERS),
}


@dataclass(frozen=True, slots=True)
class Request:
    """What one call sends, of which method, and whether its caller goes before the answer."""

    method: str
    data: bytes
    is_cut: bool
    is_compressed: bool = False

    def __repr__(self) -> str:
        how = ", cut" if self.is_cut else ""
        return f"Request({self.method}{how}: {len(self.data)}:{self.data[:60].hex()})"


@st.composite
def pulls(draw: st.DrawFn) -> Request:
    """A pull, spoilt in up to three places."""
    fragment = draw(st.integers(0, 1))
    asked = pb.PullRequest(run=RUN, fragment=fragment, epoch=draw(st.integers(0, 1)))
    if draw(st.booleans()):
        asked.replica, asked.incarnation = "a", 1
    if draw(st.booleans()):
        asked.newest = True
    else:
        asked.revision = draw(st.sampled_from([0, REVISION]))
    asked.boxes.extend(draw(st.sampled_from([whole, nothing, columns]))(fragment))
    if draw(st.booleans()):  # mostly what it holds before the newest
        asked.held = draw(st.sampled_from([f"{INSTANCE}/{RUN}/{fragment}/1/0"] * 4 + [*HELD]))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
        if draw(st.booleans()):
            spoil_boxes(draw, asked.boxes)
        else:
            _spoil_field(draw, asked, PULL_FIELDS)
    return _finished(draw, "Pull", asked)


@st.composite
def openings(draw: st.DrawFn) -> Request:
    """An opening of a run with a layout, or of one without; spoilt in up to three places."""
    asked = pb.OpenRunRequest(run=draw(st.sampled_from([RUN, FRESH])), replica="a", incarnation=1)
    asked.layout.CopyFrom(draw(layouts()) if asked.run == FRESH else LAYOUT.to_proto())
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 3]))):
        spoil = draw(st.sampled_from([_spoil_tensor, _spoil_fragment, _spoil_layout, None]))
        if spoil:
            spoil(draw, asked.layout)
        else:
            _spoil_field(draw, asked, OPEN_FIELDS)
    return _finished(draw, "OpenRun", asked)


@st.composite
def layouts(draw: st.DrawFn) -> pb.Layout:
    """A valid layout of a few small tensors, the first dimension of each cut in two or not at all.

    It has an element at least, and no fragment without any.
    """
    made = pb.Layout(fragments=[pb.Fragment(name="f0"), pb.Fragment(name="f1")])
    for number in range(draw(st.integers(1, 3))):
        shape = draw(st.lists(st.integers(0, 5), max_size=4))
        aliases = sorted(f"alias{number}.{i}" for i in range(draw(st.integers(0, 2))))
        dtype = draw(st.sampled_from(DTYPES))
        made.tensors.append(pb.Tensor(name=f"t{number}", shape=shape, dtype=dtype, aliases=aliases))
        cut = draw(st.integers(0, shape[0])) if shape else 0
        for begin, end in ((0, cut), (cut, shape[0])) if 0 < cut < (shape or [0])[0] else [(0, 0)]:
            box = pb.Box(tensor=number, offsets=[0] * len(shape), sizes=shape)
            if end:
                box.offsets[0], box.sizes[0] = begin, end - begin
            made.fragments[draw(st.integers(0, 1))].boxes.append(box)
    whole = len(made.tensors)
    made.tensors.append(pb.Tensor(name="last", shape=[2], dtype="float32"))
    for at, fragment in enumerate(made.fragments):
        fragment.boxes.append(pb.Box(tensor=whole, offsets=[at], sizes=[1]))
    return made


def whole(fragment: int) -> list[pb.Box]:
    return [box.to_proto() for box in LAYOUT.fragments[fragment].boxes]


def nothing(fragment: int) -> list[pb.Box]:
    return []


def columns(fragment: int) -> list[pb.Box]:
    """Some columns of a fragment's tensor: a span for each row."""
    begin, rows = ((0, CUT), (CUT, LAYOUT.tensors[0].shape[0] - CUT))[fragment]
    return [pb.Box(tensor=0, offsets=[begin, 3], sizes=[rows, COLUMNS - 9])]


def _finished(draw: st.DrawFn, method: str, asked: Any) -> Request:
    data = asked.SerializeToString()
    if draw(st.integers(0, 9)) == 0:
        data = spoilt_bytes(draw, data)
    return Request(method, data, draw(st.integers(0, 9)) == 0)


def _spoil_field(draw: st.DrawFn, asked: Any, fields: Tables) -> None:
    """Another value in a field, or none."""
    name = draw(st.sampled_from([*fields]))
    if draw(st.integers(0, 4)) == 0:
        asked.ClearField(name)
    else:
        setattr(asked, name, fields[name](draw))


def _spoil_tensor(draw: st.DrawFn, layout: pb.Layout) -> None:
    """Another tensor in the place of one, or none, or twice the same."""
    how = draw(st.sampled_from(["name", "dtype", "alias", "shape", "number", "drop", "twice"]))
    if not layout.tensors:
        return
    at = draw(st.integers(0, len(layout.tensors) - 1))
    one = layout.tensors[at]
    if how == "name":
        one.name = draw(TEXTS)
    elif how == "dtype":
        one.dtype = draw(st.one_of(TEXTS, st.sampled_from([*DTYPES, "float8", "FLOAT32"])))
    elif how == "alias":
        one.aliases.extend(draw(st.lists(TEXTS, min_size=1, max_size=3)))
    elif how == "shape":
        del one.shape[:]
        one.shape.extend(draw(SHAPES))
    elif how == "number" and one.shape:
        one.shape[draw(st.integers(0, len(one.shape) - 1))] = draw(NUMBERS)
    elif how == "drop":
        del layout.tensors[at]
    else:
        layout.tensors.append(one)


def _spoil_fragment(draw: st.DrawFn, layout: pb.Layout) -> None:
    """Another name or other boxes of a fragment, or none, or twice the same."""
    how = draw(st.sampled_from(["name", "boxes", "boxes", "boxes", "drop", "twice", "empty"]))
    if not layout.fragments:
        return
    at = draw(st.integers(0, len(layout.fragments) - 1))
    if how == "name":
        layout.fragments[at].name = draw(TEXTS)
    elif how == "boxes":
        spoil_boxes(draw, layout.fragments[at].boxes)
    elif how == "drop":
        del layout.fragments[at]
    elif how == "twice":
        layout.fragments.append(layout.fragments[at])
    else:
        layout.fragments.append(pb.Fragment(name=draw(TEXTS)))


def _spoil_layout(draw: st.DrawFn, layout: pb.Layout) -> None:
    """Something of the whole: a tensor without elements and of any size, other frozen values."""
    how = draw(st.sampled_from(["frozen", "hollow", "hollow", "clear"]))
    if how == "frozen":
        layout.frozen_sha256 = draw(TEXTS)
    elif how == "clear":
        layout.Clear()
    else:
        shape = [*draw(st.lists(NUMBERS, max_size=3)), 0]
        layout.tensors.append(pb.Tensor(name="hollow", shape=shape, dtype="float32"))
        if layout.fragments and draw(st.booleans()):
            number = len(layout.tensors) - 1
            box = pb.Box(tensor=number, offsets=[0] * len(shape), sizes=shape)
            layout.fragments[0].boxes.append(box)
