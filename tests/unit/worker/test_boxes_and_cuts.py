"""Where shards lie and how fragments are cut: every element once, whatever the sizes."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from syncline.core.boxes import local_box, overlap, senders
from syncline.core.cutting import cut
from syncline_proto.layout import Box, Layout, TensorSpec
from syncline_proto.spans import check_tiling, spans

SHAPES = st.lists(st.integers(1, 7), min_size=0, max_size=3)


Case = tuple[list[int], list[int | None], list[int]]


@st.composite
def sharded(draw: st.DrawFn) -> Case:
    """A shape, what each axis of a mesh shards of it, and the mesh: one axis or two."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    axes = draw(st.integers(1, 2))
    dims = [draw(st.none() | st.integers(0, len(shape) - 1)) for _ in range(axes)]
    return shape, dims, [draw(st.integers(1, 4)) for _ in range(axes)]


@given(sharded(), st.booleans())
def test_the_senders_of_all_ranks_tile_a_tensor(case: Case, is_right_first: bool) -> None:
    """Whichever axis cuts first: with tensor parallelism below FSDP2 the right one does."""
    shape, dims, mesh = case
    layout = Layout((TensorSpec("w", tuple(shape), "float32"),), cut([shape], ["f"]))
    order = [*range(len(mesh))][:: -1 if is_right_first else 1]
    holders = [
        local_box(0, shape, [(dim, mesh[i], at[i]) for i in order if (dim := dims[i]) is not None])
        for at in itertools.product(*map(range, mesh))
    ]
    first = senders(holders)
    assert all(holders[sender] == box for sender, box in zip(first, holders, strict=True))
    sent = [[box] if box.numel and first[rank] == rank else [] for rank, box in enumerate(holders)]
    check_tiling(layout.numel, [spans(layout, 0, boxes) for boxes in sent])


@given(rows=st.integers(1, 20), ranks=st.integers(1, 8))
def test_a_box_is_what_torch_gives_a_rank(rows: int, ranks: int) -> None:
    chunks = torch.arange(rows).chunk(ranks)
    for rank in range(ranks):
        box = local_box(0, [rows], [(0, ranks, rank)])
        expected = chunks[rank].tolist() if rank < len(chunks) else []
        assert list(range(box.offsets[0], box.offsets[0] + box.sizes[0])) == expected


@given(st.lists(SHAPES, min_size=1, max_size=5), st.integers(1, 12), st.data())
def test_fragments_are_small_enough_and_cover_every_tensor(
    shapes: list[list[int]], elements_max: int, data: st.DataObject
) -> None:
    groups = [data.draw(st.sampled_from("abc")) for _ in shapes]
    fragments = cut(shapes, groups, elements_max)
    tensors = [TensorSpec(f"t{i}", tuple(s), "float32") for i, s in enumerate(shapes)]
    Layout(tuple(tensors), fragments)  # refuses what does not cover every tensor exactly once
    assert all(fragment.numel <= elements_max for fragment in fragments)
    assert len({fragment.name for fragment in fragments}) == len(fragments)


def test_a_group_that_fits_is_one_fragment_and_a_large_tensor_is_cut_by_rows() -> None:
    fragments = cut([[2, 3], [10, 4], [3]], ["small", "large", "small"], elements_max=16)
    assert [fragment.name for fragment in fragments] == ["small", "large.0", "large.1", "large.2"]
    assert [box.sizes for f in fragments[1:] for box in f.boxes] == [(4, 4), (4, 4), (2, 4)]


@given(st.data())
def test_an_overlap_is_what_two_boxes_share(data: st.DataObject) -> None:
    def box() -> Box:
        offsets = data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
        sizes = data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
        return Box(0, offsets, sizes)

    def mask(box: Box | None) -> np.ndarray:
        grid = np.zeros((8, 8), bool)
        if box is not None:
            (y, x), (h, w) = box.offsets, box.sizes
            grid[y : y + h, x : x + w] = True
        return grid

    a, b = box(), box()
    assert (mask(overlap(a, b)) == (mask(a) & mask(b))).all()
