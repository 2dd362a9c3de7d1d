"""The norm of tensors that ranks share between them, whatever meshes they lie on."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from syncline.layout import whole


def whole_norm(tensors: Iterable[Tensor]) -> float:
    """Of all of them as one vector; on a GPU it waits. Collective where they are sharded."""
    by_mesh: dict[DeviceMesh | None, list[Tensor]] = {}
    for tensor in tensors:
        mesh = tensor.device_mesh if isinstance(tensor, DTensor) else None
        by_mesh.setdefault(mesh, []).append(tensor)
    norms = [whole(torch.nn.utils.get_total_norm(own)) for own in by_mesh.values()]
    return math.hypot(*map(float, norms))
