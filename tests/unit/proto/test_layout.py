"""Shards land where they belong, and a layout that is not whole is refused with its reason."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline_proto.errors import InvalidRequest
from syncline_proto.layout import (
    DTYPES,
    Box,
    FragmentSpec,
    Layout,
    TensorSpec,
    boxes_from_proto,
    difference,
    layout_from_json,
    layout_from_proto,
    layout_to_json,
)
from syncline_proto.spans import SPANS_MAX, check_tiling, spans
from syncline_proto.v1 import sync_pb2 as pb

SHAPES = st.lists(
    st.lists(st.integers(1, 6), min_size=0, max_size=4).map(tuple), min_size=1, max_size=4
)


def whole(tensor: int, shape: tuple[int, ...]) -> Box:
    return Box(tensor, (0,) * len(shape), shape)


def one_fragment(shapes: list[tuple[int, ...]]) -> Layout:
    tensors = tuple(TensorSpec(f"t{i}", shape, "float32") for i, shape in enumerate(shapes))
    boxes = tuple(whole(i, shape) for i, shape in enumerate(shapes))
    return Layout(tensors, (FragmentSpec("f", boxes),))


@st.composite
def shardings(draw: st.DrawFn) -> tuple[Layout, list[list[Box]]]:
    """A fragment of whole tensors, each cut along any of its dimensions, over some ranks."""
    shapes = draw(SHAPES)
    ranks: list[list[Box]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for tensor, shape in enumerate(shapes):
        cuts = [
            sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))}) for size in shape
        ]
        sides = [list(itertools.pairwise(cut)) for cut in cuts]
        for sector in itertools.product(*sides):
            box = Box(tensor, tuple(a for a, _ in sector), tuple(b - a for a, b in sector))
            ranks[draw(st.integers(0, len(ranks) - 1))].append(box)
    return one_fragment(shapes), ranks


def payload(layout: Layout, flat: np.ndarray, boxes: list[Box]) -> np.ndarray:
    """The slow and plain way: slice every box out of its tensor."""
    parts, at = [np.empty(0, flat.dtype)], 0
    tensors = []
    for tensor in layout.tensors:
        size = math.prod(tensor.shape)
        tensors.append(flat[at : at + size].reshape(tensor.shape))
        at += size
    for box in boxes:
        where = tuple(slice(a, a + n) for a, n in zip(box.offsets, box.sizes, strict=True))
        parts.append(tensors[box.tensor][where].reshape(-1))
    return np.concatenate(parts)


@given(shardings())
def test_runs_are_where_the_boxes_lie_and_any_sharding_tiles(
    drawn: tuple[Layout, list[list[Box]]],
) -> None:
    layout, ranks = drawn
    flat = np.arange(layout.numel)
    for boxes in ranks:
        taken = [flat[a : a + n] for a, n in spans(layout, 0, boxes)]
        together = np.concatenate([np.empty(0, flat.dtype), *taken])
        assert np.array_equal(together, payload(layout, flat, boxes))
    check_tiling(layout.numel, [spans(layout, 0, boxes) for boxes in ranks])


@given(shardings(), st.data())
def test_every_gap_and_every_overlap_is_found_and_named(
    drawn: tuple[Layout, list[list[Box]]], data: st.DataObject
) -> None:
    layout, ranks = drawn
    rank = data.draw(st.sampled_from([r for r in ranks if r]))
    box = data.draw(st.sampled_from(rank))
    at = int(spans(layout, 0, [box])[0, 0])
    without = [[b for b in boxes if b is not box] for boxes in ranks]
    with pytest.raises(InvalidRequest, match=f"element {at} of {layout.numel} is missing"):
        check_tiling(layout.numel, [spans(layout, 0, boxes) for boxes in without])
    with pytest.raises(InvalidRequest, match=f"element {at} of {layout.numel} is covered twice"):
        check_tiling(layout.numel, [spans(layout, 0, boxes) for boxes in [*ranks, [box]]])


@given(shardings(), st.integers(0, 2**32 - 1))
def test_the_norm_from_shards_is_the_norm_of_the_whole(
    drawn: tuple[Layout, list[list[Box]]], seed: int
) -> None:
    layout, ranks = drawn
    flat = np.random.default_rng(seed).standard_normal(layout.numel)
    squares = math.fsum(float(np.sum(payload(layout, flat, boxes) ** 2)) for boxes in ranks)
    assert math.isclose(math.sqrt(squares), float(np.linalg.norm(flat)), rel_tol=1e-12)


LAYOUT = Layout(
    (TensorSpec("a", (4, 3), "float32", ("b", "c")), TensorSpec("d", (), "bfloat16")),
    (
        FragmentSpec("f", (Box(0, (0, 0), (2, 3)),)),
        FragmentSpec("g", (Box(0, (2, 0), (2, 3)), Box(1, (), ()))),
    ),
    "00ff",
)


def test_json_and_proto_come_back_equal_and_the_fingerprint_is_the_documented_one() -> None:
    assert layout_from_json(layout_to_json(LAYOUT)) == LAYOUT
    assert layout_from_proto(LAYOUT.to_proto()) == LAYOUT
    text = (
        '{"tensors":[["a",[4,3],"float32",["b","c"]],["d",[],"bfloat16",[]]],'
        '"fragments":[["f",[[0,[0,0],[2,3]]]],["g",[[0,[2,0],[2,3]],[1,[],[]]]]],'
        '"frozen_sha256":"00ff"}'
    )
    assert layout_to_json(LAYOUT) == text
    assert LAYOUT.fingerprint() == hashlib.sha256(text.encode("ascii")).hexdigest()


@given(shardings())
def test_any_layout_comes_back_equal(drawn: tuple[Layout, list[list[Box]]]) -> None:
    layout, _ = drawn
    assert layout_from_json(layout_to_json(layout)) == layout
    assert layout_from_proto(layout.to_proto()) == layout


def changed(layout: Layout, tensor: int, **fields: object) -> Layout:
    tensors = list(layout.tensors)
    tensors[tensor] = dataclasses.replace(tensors[tensor], **fields)  # pyright: ignore
    return dataclasses.replace(layout, tensors=tuple(tensors))


TALLER = Layout(
    (TensorSpec("a", (3, 4), "float32", ("b", "c")), LAYOUT.tensors[1]),
    (
        FragmentSpec("f", (Box(0, (0, 0), (3, 2)),)),
        FragmentSpec("g", (Box(0, (0, 2), (3, 2)), Box(1, (), ()))),
    ),
    "00ff",
)
LONGER = Layout(
    (*LAYOUT.tensors, TensorSpec("e", (1,), "float32")),
    (*LAYOUT.fragments, FragmentSpec("h", (Box(2, (0,), (1,)),))),
    "00ff",
)
RECUT = dataclasses.replace(
    LAYOUT,
    fragments=(
        FragmentSpec("f", (Box(0, (0, 0), (1, 3)),)),
        FragmentSpec("g", (Box(0, (1, 0), (3, 3)), Box(1, (), ()))),
    ),
)
SPLIT = dataclasses.replace(
    LAYOUT,
    fragments=(
        LAYOUT.fragments[0],
        FragmentSpec("g", LAYOUT.fragments[1].boxes[:1]),
        FragmentSpec("h", LAYOUT.fragments[1].boxes[1:]),
    ),
)
RENAMED = dataclasses.replace(
    LAYOUT, fragments=(dataclasses.replace(LAYOUT.fragments[0], name="z"), LAYOUT.fragments[1])
)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (changed(LAYOUT, 0, name="x"), "'x'"),
        (changed(LAYOUT, 1, dtype="float16"), "float16"),
        (changed(LAYOUT, 0, aliases=("b",)), "tied"),
        (TALLER, "shape"),
        (LONGER, "3 here"),
        (dataclasses.replace(LAYOUT, frozen_sha256="11"), "frozen"),
        (RECUT, "fragment 0"),
        (SPLIT, "fragment 1"),
        (RENAMED, "fragment 0"),
    ],
    ids=["name", "dtype", "aliases", "shape", "tensors", "frozen", "cut", "split", "fragment"],
)
def test_every_field_counts_and_the_first_difference_is_named(other: Layout, word: str) -> None:
    assert other.fingerprint() != LAYOUT.fingerprint()
    for ours, theirs in ((LAYOUT, other), (other, LAYOUT)):
        told = difference(ours, theirs)
        assert told is not None
        assert told.endswith(".")
    told = difference(LAYOUT, other)
    assert told is not None and word in told
    assert difference(other, layout_from_json(layout_to_json(other))) is None


def vector(*boxes: Box, shape: tuple[int, ...] = (4,)) -> Layout:
    return Layout((TensorSpec("w", shape, "float32"),), (FragmentSpec("f", boxes),))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: vector(), "elements"),
        (lambda: vector(Box(0, (0,), (3,))), r"\[3\] is in no fragment"),
        (lambda: vector(Box(0, (1,), (3,))), r"\[0\] is in no fragment"),
        (lambda: vector(Box(0, (0,), (3,)), Box(0, (2,), (2,))), r"\[2\] is in fragments twice"),
        (lambda: vector(Box(0, (0,), (5,))), "outside"),
        (lambda: vector(Box(0, (2**63,), (4,))), "outside"),
        (lambda: vector(Box(0, (0, 0), (4, 1))), "outside"),
        (lambda: vector(Box(1, (0,), (4,))), "no tensor 1"),
        # JSON has negative numbers, and the wire has none.
        (lambda: vector(Box(0, (0,), (4,)), Box(-1, (0,), (2,))), "no tensor -1"),
        (lambda: vector(*(Box(0, (a,), (n,)) for a, n in ((0, 4), (2, -1), (1, 1)))), r"\[-1\]"),
        (lambda: vector(Box(0, (0, 0), (-2, -2)), shape=(-2, -2)), r"the shape \[-2, -2\]"),
        (lambda: vector(Box(0, (0,), (2**27,)), shape=(2**27,)), "elements"),
        (lambda: vector(Box(0, (0,) * 9, (1,) * 9), shape=(1,) * 9), "dimensions"),
        (lambda: Layout((TensorSpec("w", (1,), "int8"),), ()), "dtype"),
        (lambda: Layout((TensorSpec("w", (1,), "x" * 10**6),), ()), r"dtype 'x{76}\.\.\. is none"),
        (lambda: Layout((TensorSpec("", (1,), "float32"),), ()), "name"),
        (lambda: Layout((TensorSpec("n" * 10**6, (1,), "float32"),), ()), r"n{76}\.\.\. has 10+"),
        (lambda: Layout((TensorSpec("a\nb", (1,), "float32"),), ()), "control character"),
        (
            lambda: Layout((TensorSpec("a", (1,), "float32", ("\x1b[2J",)),), ()),
            "control character",
        ),
        (lambda: vector(Box(0, (0,) * 8, (1,) * 8), shape=(4,) * 8), "no fragment"),
        (lambda: vector(*[Box(0, (0,) * 8, (1,) * 8)] * 3000, shape=(9,) * 8), "768000 corners"),
        (lambda: Layout((TensorSpec("w", (1,), "float32", ("w",)),), ()), "name"),
        (lambda: Layout((TensorSpec("w", (1,), "float32"),), ()), "at least one"),
    ],
)
def test_a_layout_that_is_not_whole_is_refused_with_the_reason(make: object, word: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidRequest, match=word):
        make()


@given(shardings(), st.data())
@settings(max_examples=50)
def test_a_layout_may_be_cut_anyhow_but_never_with_a_gap_or_twice(
    drawn: tuple[Layout, list[list[Box]]], data: st.DataObject
) -> None:
    layout, ranks = drawn
    fragments = [FragmentSpec(f"f{i}", tuple(boxes)) for i, boxes in enumerate(ranks) if boxes]
    dataclasses.replace(layout, fragments=tuple(fragments))
    spoilt = data.draw(st.integers(0, len(fragments) - 1))
    box = fragments[spoilt].boxes[0]
    twice = [*fragments, FragmentSpec("again", (box,))]
    with pytest.raises(InvalidRequest, match="twice"):
        dataclasses.replace(layout, fragments=tuple(twice))
    rest = fragments[spoilt].boxes[1:]
    fragments[spoilt] = FragmentSpec("short", rest)
    with pytest.raises(InvalidRequest, match="in no fragment|0 elements|at least one"):
        dataclasses.replace(layout, fragments=tuple(f for f in fragments if f.boxes))


@pytest.mark.parametrize(
    "box",
    [
        Box(0, (0, 0), (5, 3)),
        Box(0, (2**63, 0), (1, 3)),
        Box(0, (0, 0), (2**63, 3)),
        Box(0, (1, 0), (2, 3)),  # reaches into the rows of the other fragment
        Box(0, (0,), (2,)),
        Box(1, (), ()),  # in the other fragment
        Box(7, (0,), (1,)),
    ],
)
def test_a_shard_outside_of_its_fragment_is_refused(box: Box) -> None:
    with pytest.raises(InvalidRequest, match="is not inside fragment 0"):
        spans(LAYOUT, 0, [box])


def test_a_shard_in_too_many_spans_is_refused_before_memory_is_taken() -> None:
    wide = one_fragment([(SPANS_MAX + 1, 2)])
    with pytest.raises(InvalidRequest, match="spans"):
        spans(wide, 0, [Box(0, (0, 0), (SPANS_MAX + 1, 1))])


def test_a_box_of_two_minds_about_its_dimensions_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="differ in number"):
        boxes_from_proto([pb.Box(tensor=0, offsets=[0], sizes=[1, 2])])


def test_a_box_of_too_many_dimensions_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 8 dimensions"):
        boxes_from_proto([pb.Box(tensor=0, offsets=[0] * 9, sizes=[1] * 9)])


def test_a_difference_repeats_no_long_names() -> None:
    ours = changed(LAYOUT, 0, name="a" * 1000, aliases=("b" * 1000,))
    for theirs in (changed(ours, 0, name="c" * 1000), changed(ours, 0, aliases=("d" * 1000,))):
        told = difference(ours, theirs)
        assert told is not None and len(told) < 300


def test_the_page_of_the_protocol_tells_a_fingerprint_truly() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    found = re.search(r"in one line\)\n\n(.+?)\n\nhas the fingerprint `([0-9a-f]{64})`", page, re.S)
    assert found is not None
    text = "".join(line.strip() for line in found[1].splitlines())
    layout = layout_from_json(text)
    assert layout_to_json(layout) == text
    assert layout.fingerprint() == found[2] == hashlib.sha256(text.encode("ascii")).hexdigest()
    dtypes = re.search(r"A `dtype` is (.+?)\.", page)
    assert dtypes is not None and set(re.findall(r"`(\w+)`", dtypes[1])) == set(DTYPES)
