"""Accelerate with FSDP2 where there is no GPU: PyTorch can, and Accelerate leaves it out there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

KINDS: dict[str, type] = {"ddp": DistributedDataParallel, "fsdp2": FSDPModule}


@contextmanager
def fsdp_on_cpu() -> Iterator[None]:
    """Inside, ranks whose devices are CPUs are made what those of GPUs are with an FSDP plugin."""
    made = AcceleratorState.__init__

    def make(state: Any, *given: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        made(state, *given, fsdp_plugin=fsdp_plugin, **named)
        if fsdp_plugin is not None and state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    with patch.object(AcceleratorState, "__init__", make):
        yield


def prepared(model: nn.Module, kind: str) -> tuple[nn.Module, Optimizer]:
    """What Accelerate makes of a model with ``blocks``, and of an AdamW, on the ranks that met."""
    AcceleratorState._reset_state(reset_partial_state=True)
    plugin = None
    if kind == "fsdp2":
        name = type(model.get_submodule("blocks.0")).__name__
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=[name],
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with fsdp_on_cpu():
        accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
        model, optimizer = accelerator.prepare(model, optimizer)
    assert isinstance(model, KINDS[kind])
    return model, optimizer
