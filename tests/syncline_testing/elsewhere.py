"""Tensors that say that they lie on an accelerator, for machines without one.

They compute on the CPU, and refuse what a device would: to meet a tensor of another in anything but
a copy. What the device holds is counted. For processes of their own: what makes torch
know the device (``register``) is for good.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = torch.device("privateuseone", 0)

_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class Device:
    """What it holds, in bytes."""

    def __init__(self) -> None:
        self.held = self.peak = 0
        self._known: set[int] = set()

    def see(self, storage: torch.UntypedStorage) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if address not in self._known:
            self._known.add(address)
            self.held += size
            self.peak = max(self.peak, self.held)
            weakref.finalize(storage, self._forget, address, size)

    def _forget(self, address: int, size: int) -> None:
        self._known.remove(address)
        self.held -= size


device = Device()


class Elsewhere(Tensor):
    """A tensor on ``DEVICE``, whose values are in a tensor of the CPU."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        device.see(inner.untyped_storage())
        self = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=DEVICE
        )
        self.on_cpu = inner
        return self

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _done(func, args, dict(kwargs or {}))


class OnDevice(TorchDispatchMode):
    """Inside, what is asked for on the device is there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(func, args, dict(kwargs or {}))


def _done(func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    tensors = [one for one in tree_leaves((args, given)) if isinstance(one, Tensor)]
    there = [one for one in tensors if isinstance(one, Elsewhere)]
    assert func in _COPIES or len(there) in (0, len(tensors)), f"{func} meets two devices"
    asked = given.pop("device", None)
    is_there = bool(there) if asked is None else torch.device(asked).type == DEVICE.type
    args, given = tree_map_only(Elsewhere, lambda one: one.on_cpu, (args, given))
    out = func(*args, **given)
    if func._schema.is_mutable:  # it returns its first argument, which stays what it is
        return tensors[0]
    return tree_map_only(Tensor, Elsewhere, out) if is_there else out


def register() -> None:
    """Let torch know the device."""
    _setup_privateuseone_for_python_backend()


def moved(model: nn.Module) -> None:
    """Move the parameters of a model to the device."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(Elsewhere(parameter.detach())))
