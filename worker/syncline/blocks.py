"""A model's names without wrappers, and its transformer blocks: what fragments are made of.

The one place that knows how wrappers (DDP, FSDP2, checkpointing, compile) change names. Reads the
model's modules; knows nothing of their tensors, ranks or runs.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule

from syncline_proto.layout import EMBEDDINGS

HEAD = "head"

WRAPPER_ATTRIBUTES = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Where wrappers keep what they wrap: compile, activation checkpointing, FSDP1."""

_SUSPECTS = frozenset({*WRAPPER_ATTRIBUTES, "module"})
"""Names without any of these parts, which most are, bear no wrapper's."""


class CanonicalNames:
    """Map a raw dotted name of a model to the name without wrapper prefixes."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=False))

    def __call__(self, raw: str) -> str:
        parts = raw.split(".")
        if _SUSPECTS.isdisjoint(parts):
            return raw
        return ".".join(
            part for i, part in enumerate(parts) if not self._wraps(".".join(parts[:i]), part)
        )

    def _wraps(self, owner: str, attribute: str) -> bool:
        if attribute in WRAPPER_ATTRIBUTES:
            return True
        wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
        return attribute == "module" and isinstance(self._modules.get(owner), wrappers)


def blocks_in(model: nn.Module) -> tuple[str, nn.ModuleList] | None:
    """The longest outermost list of equal modules with parameters: the transformer blocks.

    Returns:
        Its raw name and the list; None if the model has none.
    """
    found: list[tuple[str, nn.ModuleList]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        if isinstance(module, nn.ModuleList) and not inside and _are_equal(module):
            found.append((name, module))
    return max(found, key=lambda pair: len(pair[1]), default=None)


def _are_equal(modules: nn.ModuleList) -> bool:
    kinds = {_kind(module) for module in modules}
    return len(kinds) == 1 and all(any(True for _ in m.parameters()) for m in modules)


def _kind(module: nn.Module) -> type[nn.Module]:
    """The class of what is inside all wrappers; FSDP2 makes a subclass of it."""
    for attribute in WRAPPER_ATTRIBUTES:
        inner = module._modules.get(attribute)
        if inner is not None:
            return _kind(inner)
    return next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule))


class Groups:
    """The group of tensors that each parameter belongs to, which becomes a fragment.

    Its block, what comes before the blocks, or what comes after them; in a model without blocks the
    child of the model that owns it.
    """

    def __init__(self, model: nn.Module, names: CanonicalNames) -> None:
        self._places: dict[str, str | int] = {}
        """By canonical name: a group, or the number of a block."""
        self._blocks, self._count = "", 0
        raw = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        found = blocks_in(model)
        if found is None:
            self._places = {names(name): names(name).split(".")[0] for name in raw}
            return
        prefix = f"{found[0]}."
        self._blocks, self._count = names(found[0]), len(found[1])
        seen = False
        for name in raw:
            inside = name.startswith(prefix)
            seen = seen or inside
            if inside:
                number = int(name.removeprefix(prefix).split(".")[0])
                self._places.setdefault(names(name), number)
            else:
                self._places.setdefault(names(name), HEAD if seen else EMBEDDINGS)

    def of(self, name: str, blocks_per_fragment: int) -> str:
        """The group of a parameter, by its canonical name; so many neighbours are one group."""
        place = self._places[name]
        if isinstance(place, str):
            return place
        first = place - place % blocks_per_fragment
        last = min(first + blocks_per_fragment, self._count) - 1
        return f"{self._blocks}.{first}" + (f"-{last}" if last > first else "")
