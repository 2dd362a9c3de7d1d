"""What must be known of FSDP2's inside where values are written into the shards of a model.

FSDP2 keeps whole parameters that it has gathered, on streams of its own; whoever changes a shard
must see to it that neither an old copy is used nor the new value read too early. torch has public
ways for part of this; the rest is here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

_GATHERING = ("all_gather_copy_in_stream", "all_gather_stream")


def reshard(module: FSDPModule) -> None:
    """Drop what is gathered, of a module that is in no forward pass.

    FSDP2 takes modules that share a group, of which an evaluation ran some, to be still in one,
    and would keep what they have.
    """
    for group in _groups(module):
        if group._training_state is TrainingState.FORWARD:
            group._training_state = TrainingState.IDLE
    module.reshard()


def reshard_all(model: nn.Module) -> None:
    """Bring a model into the state in which its parameters are the optimizer's; between two steps.

    Some of what a forward pass gathers stays until the backward pass. Without one, who looks at
    parameters finds whole ones, and the next forward pass does not see later writes to the shards.
    After one that an exception has ended, FSDP2 would take the next to be part of it.
    """
    for module in _modules(model):
        begin_anew = getattr(module, "reset_iter_state", None)  # older versions of torch have none
        if begin_anew and module._get_fsdp_state()._is_root:  # as its first forward pass decides
            begin_anew()
        reshard(module)


def gather_after(module: FSDPModule) -> None:
    """Let gathering wait for what the current stream has been told to do.

    FSDP2 itself sees to that where the root's forward pass begins, and not at each layer's. What
    was written lies on that stream behind what the layers before compute: so gathering waits for
    those, too, in the forward pass that merges. An event would come no earlier.
    """
    context: Any = module._get_fsdp_state()._comm_ctx
    # They are made in the first forward pass.
    for stream in (getattr(context, name, None) for name in _GATHERING):
        if stream is not None:
            stream.wait_stream(context.device_handle.current_stream())


def gathering(manager: FSDPModule, model: nn.Module) -> Iterator[nn.Module]:
    """The modules in whose forward the parameters that ``manager`` manages are gathered.

    Those that share its group, and those that prefetch it.
    """
    state = manager._get_fsdp_state()
    for module in _modules(model):
        other = module._get_fsdp_state()
        if other is state or state in other._states_to_forward_prefetch:
            yield module


def _modules(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def _groups(module: FSDPModule) -> list[Any]:
    """Its parameter groups; newer versions of torch know several of one module."""
    state: Any = module._get_fsdp_state()
    found = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    return [group for group in found if group is not None]
