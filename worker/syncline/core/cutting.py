"""How a model's tensors are cut into fragments.

Pure. A fragment is what is synchronised as one unit; a group of tensors that is too large for one
is cut by rows into several, named ``group.0``, ``group.1`` and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from syncline_proto.layout import FRAGMENT_ELEMENTS_MAX, Box, FragmentSpec


def cut(
    shapes: Sequence[Sequence[int]],
    groups: Sequence[str],
    elements_max: int = FRAGMENT_ELEMENTS_MAX,
) -> tuple[FragmentSpec, ...]:
    """Cut tensors into fragments, group by group in the order in which groups first appear.

    Args:
        shapes: of each tensor, in the order of the layout.
        groups: the name of the group that each tensor belongs to.
        elements_max: in one fragment.
    """
    members: dict[str, list[Box]] = {}
    for index, (shape, group) in enumerate(zip(shapes, groups, strict=True)):
        whole = Box(index, (0,) * len(shape), tuple(shape))
        members.setdefault(group, []).append(whole)
    fragments: list[FragmentSpec] = []
    for group, boxes in members.items():
        bins = list(_packed(boxes, elements_max))
        for number, part in enumerate(bins):
            name = group if len(bins) == 1 else f"{group}.{number}"
            fragments.append(FragmentSpec(name, tuple(part)))
    return tuple(fragments)


def _packed(boxes: Sequence[Box], elements_max: int) -> Iterator[list[Box]]:
    """Fill parts of at most ``elements_max`` elements, in order; empty tensors travel along."""
    part: list[Box] = []
    left = elements_max
    for box in (piece for whole in boxes for piece in _pieces(whole, elements_max)):
        if box.numel > left:
            yield part
            part, left = [], elements_max
        part.append(box)
        left -= box.numel
    if part:
        yield part


def _pieces(box: Box, elements_max: int) -> Iterator[Box]:
    """Cut a box by rows into boxes of at most ``elements_max`` elements."""
    if box.numel <= elements_max:
        yield box
        return
    dim = next(d for d, size in enumerate(box.sizes) if size > 1)
    rows = max(1, elements_max // math.prod(box.sizes[dim + 1 :]))
    for begin in range(0, box.sizes[dim], rows):
        offsets, sizes = list(box.offsets), list(box.sizes)
        offsets[dim] += begin
        sizes[dim] = min(rows, box.sizes[dim] - begin)
        yield from _pieces(Box(box.tensor, tuple(offsets), tuple(sizes)), elements_max)
