"""Where Syncline touches a training loop: the optimizer's step, and each module's forward.

A fragment must be merged before its parameters are used. The hook goes on the FSDP2 module that
gathers them, ahead of FSDP's own; without FSDP on the modules that own them, and on the outermost
modules that hold them but not the whole stack of blocks (some layers read their children's weights
without calling them). Decides nothing; the callbacks do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from syncline.blocks import blocks_in
from syncline.faults import plainly
from syncline.fsdp import gather_after, gathering, reshard
from syncline.layout import ModelLayout
from syncline_proto.errors import ConfigError

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Modules that have no forward."""


class Hooks:
    """The hooks of one session, from ``install`` to ``remove``."""

    def __init__(self, model: nn.Module, described: ModelLayout) -> None:
        self.places = places(model, described)
        self._handles: list[RemovableHandle] = []

    def install(
        self,
        optimizer: Optimizer,
        before_forward: Callable[[Iterable[int]], None],
        before_step: Callable[[], None],
        after_step: Callable[[], None],
    ) -> None:
        """Register everything. ``before_forward`` is given the fragments that come next.

        From then on the optimizer raises ConfigError when its step is given a closure. One that
        moves the parameters between two gradients of a step (WSAM) has everything merged before.

        What torch.compile has made so far, of any model, is made anew when it is called next.
        """
        # Code that was compiled around a module does not look whether that has new hooks. Whose
        # code has this model inside nobody can tell: a function that trains it may have.
        torch.compiler.reset()
        by_module: dict[nn.Module, list[int]] = {}
        for fragment, modules in enumerate(self.places):
            for module in modules:
                by_module.setdefault(module, []).append(fragment)
        for module, fragments in by_module.items():
            hook: Any = torch.compiler.disable(_forward_hook(before_forward, tuple(fragments)))
            self._handles.append(module.register_forward_pre_hook(hook, prepend=True))
        self._handles.append(optimizer.register_step_pre_hook(_step_hook(before_step)))
        before_perturbing = getattr(optimizer, "register_perturb_pre_hook", None)
        if before_perturbing is not None:
            self._handles.append(before_perturbing(before_step))
        self._handles.append(
            optimizer.register_step_post_hook(lambda *_: after_step())  # pyright: ignore[reportArgumentType]
        )

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @contextmanager
    def writing(self, fragment: int) -> Iterator[None]:
        """Inside, a fragment's parameters may be written.

        Gathered copies, which would hide a new value, are dropped: the root of an FSDP2 model stays
        gathered after a forward pass without a backward.
        """
        modules = [module for module in self.places[fragment] if isinstance(module, FSDPModule)]
        for module in modules:
            reshard(module)
        yield  # after an exception there is nothing new for gathering to wait for
        for module in modules:
            gather_after(module)


def places(model: nn.Module, described: ModelLayout) -> list[list[nn.Module]]:
    """For each fragment the modules whose forward must wait for it; the same on all ranks."""
    found = blocks_in(model)
    stack = None if found is None else found[1]
    paths = _paths(model)
    per_tensor = [
        _unique(
            module
            for path in paths[parameter]
            for module in _waiting(path, stack, isinstance(parameter, DTensor))
        )
        for parameter in described.parameters
    ]
    return [
        _unique(module for box in fragment.boxes for module in per_tensor[box.tensor])
        for fragment in described.layout.fragments
    ]


def _paths(model: nn.Module) -> dict[nn.Parameter, list[list[nn.Module]]]:
    """For each parameter the ways to it from the model on: one for each module that owns it."""
    paths: dict[nn.Parameter, list[list[nn.Module]]] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in modules:
        parts = name.split(".") if name else []
        way = [modules[".".join(parts[:i])] for i in range(len(parts) + 1)]
        for parameter in modules[name].parameters(recurse=False):
            paths.setdefault(parameter, []).append(way)
    return paths


def _waiting(
    path: list[nn.Module], stack: nn.ModuleList | None, is_sharded: bool
) -> Iterator[nn.Module]:
    manager = next((m for m in reversed(path) if isinstance(m, FSDPModule)), None)
    if is_sharded and manager is not None:
        yield from gathering(manager, path[0])
        return
    outer = (m for m in path[1:] if not isinstance(m, CONTAINERS) and not _holds(m, stack))
    yield from (next(outer, path[-1]), path[-1])


def _holds(module: nn.Module, stack: nn.ModuleList | None) -> bool:
    return stack is not None and any(inner is stack for inner in module.modules())


def _forward_hook(
    before_forward: Callable[[Iterable[int]], None], fragments: tuple[int, ...]
) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any) -> None:
        before_forward(fragments)

    return hook


def _step_hook(before_step: Callable[[], None]) -> Callable[..., None]:
    @plainly
    def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # ``args`` begins with the optimizer. A closure makes the gradients after this hook, where
        # they are neither averaged nor, at the run's end, dropped.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is not None:
            raise ConfigError(
                "optimizer.step was given a closure, which Syncline cannot follow: compute the "
                "gradients before the step and call optimizer.step() without it."
            )
        before_step()

    return hook


def _unique(modules: Iterable[nn.Module]) -> list[nn.Module]:
    return list(dict.fromkeys(modules))
