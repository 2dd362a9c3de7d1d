"""The model cut over a replica's ranks by FSDP2, along the blocks that its fragments have.

What the ranks compute in is the mixed precision policy's; parameters stay fp32.
"""

from __future__ import annotations

from typing import Any

import structlog
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from syncline.blocks import blocks_in
from syncline.train.sections import TrainSection
from syncline_proto.errors import ConfigError

log = structlog.get_logger()


def shard_model(model: nn.Module, mesh: DeviceMesh | None, train: TrainSection) -> None:
    """Cut the model over the mesh in place: each block, the embeddings, norm and head, the rest.

    Tied embeddings stay with the root, where both of their uses see them. Without a mesh nothing
    is cut, and only fp32 can be computed in. Blocks are compiled here, one by one, so that hooks
    stay outside of the graphs.
    """
    assert mesh is not None or train.precision == "fp32", "mixed precision is FSDP2's: needs a mesh"
    # The same blocks that the run's fragments are cut along.
    found = blocks_in(model)
    blocks = [] if found is None else list(found[1])
    if mesh is not None:
        reshard = resharding(train.reshard_after_forward, mesh.size())
        options: dict[str, Any] = {"mesh": mesh, "mp_policy": _policy(train, mesh)}
        for block in blocks:
            fully_shard(block, reshard_after_forward=reshard, **options)
        is_known = isinstance(model, PreTrainedModel)
        embeddings = model.get_input_embeddings() if is_known else None
        head = model.get_output_embeddings() if is_known else None
        if embeddings is not None and head is not None and head.weight is not embeddings.weight:
            fully_shard(embeddings, reshard_after_forward=reshard, **options)
            # Needed again first thing in the backward pass: freeing them would be for nothing.
            fully_shard([*_after(model, blocks), head], reshard_after_forward=False, **options)
        fully_shard(model, **options)
    if train.compile:
        for block in blocks:
            block.forward = torch.compile(block.forward)


def resharding(asked: bool | int, ranks: int) -> bool | int:
    """As FSDP2 takes it: who has no more ranks than asked for shares among all of them."""
    if isinstance(asked, bool):
        return asked
    if asked >= ranks:
        return True
    if ranks % asked:
        raise ConfigError(
            f"train.reshard_after_forward {asked} does not divide the {ranks} ranks of this "
            "replica; take a divisor of them, or true."
        )
    return asked


def _policy(train: TrainSection, mesh: DeviceMesh) -> MixedPrecisionPolicy:
    if train.precision == "fp32":
        return MixedPrecisionPolicy()
    if mesh.device_type == "cpu":
        log.warning("train.precision bf16 is very slow on a CPU; fp32 is faster here")
    # Gradients are summed over ranks in fp32, or small ones would be lost.
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def _after(model: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Modules with parameters of their own beside and behind the blocks: the final norm."""
    if not blocks:
        return []
    names = {id(module): name for name, module in model.named_modules()}
    siblings, _, _ = names[id(blocks[0])].rpartition(".")
    parent, _, list_name = siblings.rpartition(".")
    children = list(model.get_submodule(parent).named_children())
    behind = [name for name, _ in children].index(list_name) + 1
    return [child for _, child in children[behind:] if next(child.parameters(), None) is not None]
