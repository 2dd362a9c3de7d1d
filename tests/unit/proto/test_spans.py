"""A shard is found in its fragment however finely that is cut, and never at any price."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_proto.counts import BOXES_MAX
from syncline_proto.errors import InvalidRequest
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.spans import extent, spans


@st.composite
def cut_fragments(draw: st.DrawFn) -> tuple[Layout, list[Box]]:
    """One fragment of tensors that are cut anyhow, in any order, and boxes that may lie in it."""
    shapes = draw(
        st.lists(
            st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=3
        )
    )  # fmt: skip
    wholes: list[Box] = []
    for tensor, shape in enumerate(shapes):
        pieces = [Box(tensor, (0,) * len(shape), shape)]
        for _ in range(draw(st.integers(0, 6)) if shape else 0):
            pieces += _halves(draw, pieces.pop(draw(st.integers(0, len(pieces) - 1))))
        wholes += pieces
    tensors = tuple(TensorSpec(f"t{i}", shape, "float32") for i, shape in enumerate(shapes))
    fragment = FragmentSpec("f", tuple(draw(st.permutations(wholes))))
    boxes = [_inside(draw, draw(st.sampled_from(wholes))) for _ in range(draw(st.integers(0, 6)))]
    if draw(st.booleans()):
        boxes += [draw(st.sampled_from(wholes)), _anywhere(draw, shapes)]
    return Layout(tensors, (fragment,)), boxes


def _halves(draw: st.DrawFn, box: Box) -> list[Box]:
    """Both parts of a box; one of them may be empty."""
    dim = draw(st.integers(0, len(box.sizes) - 1))
    at = draw(st.integers(0, box.sizes[dim]))
    sides = ((0, at), (at, box.sizes[dim] - at))
    return [
        Box(
            box.tensor,
            tuple(o + (begin if d == dim else 0) for d, o in enumerate(box.offsets)),
            tuple(size if d == dim else n for d, n in enumerate(box.sizes)),
        )
        for begin, size in sides
    ]


def _inside(draw: st.DrawFn, whole: Box) -> Box:
    begins = [draw(st.integers(0, n)) for n in whole.sizes]
    sizes = [draw(st.integers(0, n - a)) for a, n in zip(begins, whole.sizes, strict=True)]
    offsets = tuple(o + a for o, a in zip(whole.offsets, begins, strict=True))
    return Box(whole.tensor, offsets, tuple(sizes))


def _anywhere(draw: st.DrawFn, shapes: list[tuple[int, ...]]) -> Box:
    dims = draw(st.integers(0, 3))
    numbers = st.lists(st.integers(0, 6), min_size=dims, max_size=dims).map(tuple)
    return Box(draw(st.integers(0, len(shapes))), draw(numbers), draw(numbers))


def elements_the_plain_way(layout: Layout, boxes: list[Box]) -> list[int] | None:
    """Numbers of the boxes' elements in the flat vector; None if they cannot be a shard's.

    Then one box is in no other, or they are more than the fragment has.
    """
    found: list[int] = []
    for box in boxes:
        start = 0
        for whole in layout.fragments[0].boxes:
            if len(whole.sizes) == len(box.sizes) and whole.holds(box):
                inner = tuple(a - b for a, b in zip(box.offsets, whole.offsets, strict=True))
                numbers = np.arange(start, start + whole.numel).reshape(whole.sizes)
                where = tuple(slice(a, a + n) for a, n in zip(inner, box.sizes, strict=True))
                found += numbers[where].reshape(-1).tolist()
                break
            start += whole.numel
        else:
            return None
    return found if len(found) <= layout.fragments[0].numel else None


@given(cut_fragments())
def test_any_box_is_found_where_looking_at_every_box_finds_it(
    drawn: tuple[Layout, list[Box]],
) -> None:
    layout, boxes = drawn
    expected = elements_the_plain_way(layout, boxes)
    if expected is None:
        with pytest.raises(
            InvalidRequest, match="is not inside fragment 0|more elements than the fragment"
        ):
            spans(layout, 0, boxes)
        return
    found = spans(layout, 0, boxes)
    assert [i for a, n in found.tolist() for i in range(a, a + n)] == expected
    assert (found[:, 1] > 0).all()
    assert (found[1:, 0] != found[:-1].sum(axis=1)).all(), "neighbours are joined"


@given(cut_fragments(), st.integers(0, 20), st.integers(1, 20))
def test_an_extent_is_small_and_gives_any_part_of_its_spans(
    drawn: tuple[Layout, list[Box]], begin: int, size: int
) -> None:
    layout, boxes = drawn
    expected = elements_the_plain_way(layout, boxes)
    if expected is None:
        return
    found = extent(layout, 0, boxes)
    assert found.elements == len(expected)
    assert found.nbytes <= sum(17 + 16 * max(0, len(box.sizes) - 1) for box in boxes)
    assert len(found.spans()) <= found.span_count
    end = min(begin + size, len(expected))
    if begin < end:
        part = found.between(begin, end)
        assert [i for a, n in part.tolist() for i in range(a, a + n)] == expected[begin:end]
        assert (part[1:, 0] != part[:-1].sum(axis=1)).all(), "neighbours are joined"


def test_a_box_of_many_loops_makes_those_beside_it_no_larger() -> None:
    deep, flat = (2,) * 8, (2 * BOXES_MAX,)
    tensors = (TensorSpec("a", deep, "float32"), TensorSpec("b", flat, "float32"))
    wholes = tuple(Box(i, (0,) * len(t.shape), t.shape) for i, t in enumerate(tensors))
    layout = Layout(tensors, (FragmentSpec("f", wholes),))
    ones = [Box(1, (i,), (1,)) for i in range(0, 2 * BOXES_MAX - 2, 2)]
    corner = Box(0, (0,) * 8, (2, 1) * 4)
    half = len(ones) // 2
    found = extent(layout, 0, [*ones[:half], corner, *ones[half:]])
    assert found.nbytes <= 20 * len(ones)
    edges = np.arange(2)
    at = np.add.outer(np.add.outer(edges << 7, edges << 5), np.add.outer(edges << 3, edges << 1))
    flats = 2**8 + np.arange(0, 2 * BOXES_MAX - 2, 2)
    expected = np.concatenate([flats[:half], at.reshape(-1), flats[half:]])
    assert np.array_equal(found.spans(), np.stack([expected, np.ones_like(expected)], axis=1))
    assert np.array_equal(found.between(half + 3, half + 20), found.spans()[half + 3 : half + 20])


def test_a_fragment_of_very_many_boxes_is_read_box_by_box() -> None:
    """Looking at every box for every box would not end in the time that a test has."""
    cut = tuple(Box(0, (i,), (1,)) for i in range(BOXES_MAX))
    layout = Layout((TensorSpec("t", (BOXES_MAX,), "float32"),), (FragmentSpec("f", cut),))
    assert spans(layout, 0, cut).tolist() == [[0, BOXES_MAX]]
    found = spans(layout, 0, reversed(cut))
    assert np.array_equal(found[:, 0], np.arange(BOXES_MAX)[::-1])


def test_boxes_that_are_hard_to_find_are_refused() -> None:
    sides = range(6)
    cut = tuple(Box(0, at, (1,) * 5) for at in itertools.product(sides, repeat=5))
    layout = Layout((TensorSpec("t", (6,) * 5, "float32"),), (FragmentSpec("f", cut),))
    assert spans(layout, 0, cut).tolist() == [[0, 6**5]]
    last = Box(0, (6, 0, 0, 0, 0), (0,) * 5)  # empty, and on the rim: found after many others
    assert spans(layout, 0, [last]).size == 0
    with pytest.raises(InvalidRequest, match="looks"):
        spans(layout, 0, [last] * BOXES_MAX)


def test_no_shard_names_more_elements_than_its_fragment_has() -> None:
    """Nor does it cost anything to say so: a pull of one box a thousand times."""
    box = Box(0, (0, 0), (1 << 13, 1 << 13))
    layout = Layout((TensorSpec("w", box.sizes, "float32"),), (FragmentSpec("f", (box,)),))
    assert extent(layout, 0, [box]).elements == box.numel
    with pytest.raises(InvalidRequest, match="more elements than the fragment"):
        extent(layout, 0, [box] * 1000)
    with pytest.raises(InvalidRequest, match="more elements than the fragment"):
        extent(layout, 0, [box, Box(0, (7, 7), (1, 1))])
