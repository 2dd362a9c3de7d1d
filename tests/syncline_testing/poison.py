"""NaN in whatever FSDP2 keeps of parameters beside the shards, at the moment of a merge.

Who reads such a copy afterwards trains on NaN. Looks into FSDP2's private state, and says so where
it no longer finds there what it came for; decides nothing of what a test then expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from syncline.hooks import Hooks


@contextmanager
def poisoned(how: Literal["", "merged", "left"], *, has_copies: bool) -> Iterator[None]:
    """Inside, merges write NaN into what is kept.

    ``left``: into secondary copies alone, and FSDP2 is not told to drop them.

    ``has_copies``: ranks keep secondary copies, of which some must have been there.
    """
    if not how:
        yield
        return
    drop, copies = Hooks.writing, 0

    @contextmanager
    def writing(hooks: Hooks, fragment: int) -> Iterator[None]:
        nonlocal copies
        modules = [module for module in hooks.places[fragment] if isinstance(module, FSDPModule)]
        before = [copy for module in modules for copy in secondary(module)]
        copies += len(before)
        with drop(hooks, fragment) if how == "merged" else nullcontext():
            left = (tensor for module in modules for tensor in kept(module))
            for tensor in (*before, *(left if how == "merged" else ())):
                tensor.fill_(torch.nan)
            yield

    with patch.object(Hooks, "writing", writing):
        yield
    assert copies or not has_copies, "no secondary copy was there to poison"


def kept(module: FSDPModule) -> Iterator[Tensor]:
    """What FSDP2 holds of a module's parameters beside the shards that the optimizer moves."""
    for group in module._get_fsdp_state()._fsdp_param_groups:
        yield group._all_gather_output
        for held in group.fsdp_params:
            for tensor in (*held.all_gather_outputs, *held._unsharded_inner_tensors):
                if tensor.untyped_storage().size():
                    yield tensor
    yield from secondary(module)


def secondary(module: FSDPModule) -> Iterator[Tensor]:
    """Of these, what ranks of a small group share between them until the backward pass."""
    for group in module._get_fsdp_state()._fsdp_param_groups:
        for held in group.fsdp_params:
            copy = getattr(held, "_sharded_post_forward_param_data", None)
            if copy is not None and copy.untyped_storage().size():
                yield copy
