"""Where one rank's part of a tensor lies, and how two boxes meet.

Pure: shapes and cuts in, boxes out. Each cut is torch's for a ``Shard`` placement: ``torch.chunk``
along the dimension, so the last ranks may hold less, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from syncline_proto.layout import Box


def local_box(tensor: int, shape: Sequence[int], cuts: Iterable[tuple[int, int, int]]) -> Box:
    """The box of a tensor that is left of it after ``cuts``, one after another.

    Args:
        tensor: number of the tensor in the layout.
        shape: of the whole tensor.
        cuts: the dimension, into how many parts, and which of them is kept.
    """
    offsets, sizes = [0] * len(shape), list(shape)
    for dim, count, index in cuts:
        step = -(-sizes[dim] // count)
        begin = min(index * step, sizes[dim])
        offsets[dim] += begin
        sizes[dim] = min(step, sizes[dim] - begin)
    return Box(tensor, tuple(offsets), tuple(sizes))


def senders(held: Iterable[Box]) -> tuple[int, ...]:
    """By rank, given what each holds of a tensor: the first rank that holds just the same."""
    first: dict[Box, int] = {}
    return tuple(
        first.setdefault(box, rank) if box.numel else rank for rank, box in enumerate(held)
    )


def overlap(a: Box, b: Box) -> Box | None:
    """What two boxes of one tensor share; None if that is nothing."""
    begins = [max(x, y) for x, y in zip(a.offsets, b.offsets, strict=True)]
    ends = [
        min(x + n, y + m) for x, n, y, m in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True)
    ]
    if any(end <= begin for begin, end in zip(begins, ends, strict=True)):
        return None
    sizes = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
    return Box(a.tensor, tuple(begins), sizes)
