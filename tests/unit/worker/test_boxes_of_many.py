"""Boxes of ranks in numbers that no machine here has processes for: a process group that is none.

Each rank in its turn shards tensors by PyTorch's own ``fully_shard`` and ``distribute_tensor``,
which ask nobody for that; what a rank holds is what its box cuts out of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from syncline.core.boxes import senders
from syncline.layout import box_of, local_part
from syncline.ranks import Ranks
from syncline_proto.layout import Box

SHAPES = [(1,), (4,), (5, 3), (7, 2), (16, 2), (17,), (23, 2), (33, 3)]
MESHES = [(5,), (7,), (16,), (2, 8), (5, 3)]


@contextmanager
def one_of(world: int, rank: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def values(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(1.0, 1 + prod(shape)).reshape(shape)


def held(mesh: tuple[int, ...], is_fsdp: bool) -> list[tuple[Box, Tensor]]:
    """Of each shape, on the mesh as a rank of it sees it: its box, and what it has."""
    # Names of its own, or PyTorch takes what it has cached of the mesh of another rank.
    names = tuple(f"axis{axis}of{dist.get_rank()}" for axis in range(len(mesh)))
    devices = init_device_mesh("cpu", mesh, mesh_dim_names=names)
    parameters = [nn.Parameter(values(shape)) for shape in SHAPES]
    if is_fsdp:  # of two axes the first holds copies
        model = nn.ParameterList(parameters)
        fully_shard(cast(Any, model), mesh=devices)
        parameters = list(model.parameters())
    else:
        cuts = [Shard(0)] * len(mesh)
        parameters = [
            nn.Parameter(distribute_tensor(p.detach(), devices, cuts, src_data_rank=None))
            for p in parameters
        ]
    nobody: Ranks = Ranks.__new__(Ranks)
    return [(box_of(i, "w", p, nobody), local_part(p)) for i, p in enumerate(parameters)]


@pytest.mark.parametrize("is_fsdp", [True, False])
@pytest.mark.parametrize("mesh", MESHES)
def test_what_each_rank_holds_is_what_its_box_cuts_out(
    mesh: tuple[int, ...], is_fsdp: bool
) -> None:
    boxes: list[list[Box]] = [[] for _ in SHAPES]
    for rank in range(prod(mesh)):
        with one_of(prod(mesh), rank):
            for index, (box, own) in enumerate(held(mesh, is_fsdp)):
                zipped = zip(box.offsets, box.sizes, strict=True)
                cut = tuple(slice(zero, zero + size) for zero, size in zipped)
                assert torch.equal(values(SHAPES[index])[cut], own) or not (box.numel or own.numel)
                boxes[index].append(box)
    for shape, every in zip(SHAPES, boxes, strict=True):
        sent = [box for rank, box in enumerate(every) if senders(every)[rank] == rank]
        assert sum(box.numel for box in sent) == prod(shape)
