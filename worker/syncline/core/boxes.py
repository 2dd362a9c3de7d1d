"""Where one rank's part of a tensor lies, and how two boxes meet.

Pure: shapes and mesh coordinates in, boxes out. Follows torch's rule for a ``Shard`` placement:
``torch.chunk`` along the dimension, so the last ranks may hold less, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from syncline_proto.layout import Box


def local_box(
    tensor: int,
    shape: Sequence[int],
    placements: Sequence[int | None],
    mesh: Sequence[int],
    coordinate: Sequence[int],
) -> Box:
    """The box of a sharded tensor that the rank at ``coordinate`` holds.

    Args:
        tensor: number of the tensor in the layout.
        shape: of the whole tensor.
        placements: for each axis of the mesh the dimension it shards, or None where it replicates.
        mesh: ranks along each axis.
        coordinate: of the rank in the mesh.
    """
    offsets, sizes = [0] * len(shape), list(shape)
    for dim, count, index in zip(placements, mesh, coordinate, strict=True):
        if dim is None:
            continue
        step = -(-sizes[dim] // count)
        begin = min(index * step, sizes[dim])
        offsets[dim] += begin
        sizes[dim] = min(step, sizes[dim] - begin)
    return Box(tensor, tuple(offsets), tuple(sizes))


def is_sender(placements: Sequence[int | None], coordinate: Sequence[int]) -> bool:
    """Whether this rank, of all that hold equal copies of the box, is the one that sends it."""
    return all(index == 0 for dim, index in zip(placements, coordinate, strict=True) if dim is None)


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
