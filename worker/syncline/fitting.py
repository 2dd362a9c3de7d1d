"""Whether a model, an optimizer and replicas around them go together, before anybody joins.

Looks at memory and identities; of what a run is, and of shards, it knows nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from syncline_proto.errors import ConfigError


def checked_model(model: object) -> nn.Module:
    """Return what is to be trained.

    Raises:
        ConfigError: it is no module.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            "Replica needs a torch.nn.Module, whose parameters it trains, not "
            f"{type(model).__name__}."
        )
    return model


class Claim:
    """One replica's word that it trains a model, which two at a time would do twice over."""

    _held: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Claim]] = weakref.WeakKeyDictionary()
    """By model; of a replica that nobody holds any more there is none."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def take(self) -> None:
        """Take the model for this replica.

        Raises:
            ConfigError: another has it.
        """
        holder = self._held.get(self._model)
        if holder is not None and holder() not in (None, self):
            raise ConfigError(
                "Another Replica around this model was started already; close it before this one "
                "starts."
            )
        self._held[self._model] = weakref.ref(self)

    def give_back(self) -> None:
        """Nothing happens where it is not held."""
        holder = self._held.get(self._model)
        if holder is not None and holder() is self:
            del self._held[self._model]


def check_trains(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer that has none of the model's parameters.

    Raises:
        ConfigError: the optimizer has nothing of the model.
    """
    own = set(model.parameters())
    if not any(p in own for group in optimizer.param_groups for p in group["params"]):
        raise ConfigError(
            "The optimizer has none of the model's parameters, so it would train another: make it "
            "from the parameters of the model that Replica is given, after fully_shard."
        )


def left_out(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """The parameters that require a gradient and that the optimizer does not have, by name.

    They stay as they are in every round, unless another optimizer steps them.
    """
    has = {p for group in optimizer.param_groups for p in group["params"]}
    return [name for name, p in model.named_parameters() if p.requires_grad and p not in has]


def check_values(name: str, parameter: nn.Parameter) -> None:
    """Refuse a parameter that has no values, or none that anybody may write.

    Raises:
        ConfigError: it is such a one; it is named.
    """
    if is_lazy(parameter):
        raise ConfigError(
            f"{name} has no shape yet, as its module is lazy: call the model once, and make the "
            "optimizer from its parameters after that."
        )
    if parameter.is_meta:
        raise ConfigError(
            f"{name} is on the meta device, where it has no values: call "
            "model.to_empty(device=...) and initialize or load the model, and make the optimizer "
            "from its parameters after that."
        )
    if parameter.requires_grad and parameter.is_inference():
        raise ConfigError(
            f"{name} was made in torch.inference_mode, so nothing may be written to it: make the "
            "model outside of that."
        )


def check_memory(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """See that what is written to one parameter stays out of all others.

    Two that are the same memory from end to end pass: whoever ties them so steps them together. Of
    those with gaps only single elements are looked at: others may lie in between.

    Args:
        tensors: this rank's part of each parameter, with its name.

    Raises:
        ConfigError: elements of one share memory, or two have a part in common; it is named.
    """
    spans: list[tuple[int, int, str]] = []
    for name, tensor in tensors:
        steps = [(size, step) for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
        if tensor.numel() and any(size > 1 and not step for size, step in steps):
            raise ConfigError(f"Elements of {name} share memory (it was expanded); clone it.")
        extent = 1 + sum((size - 1) * step for size, step in steps)
        if tensor.numel() == extent:  # otherwise others may lie in its gaps
            begin = tensor.data_ptr()
            spans.append((begin, begin + extent * tensor.element_size(), name))
    last = (0, 0, "")
    for span in sorted(spans):
        if span[0] < last[1] and span[:2] != last[:2]:
            raise ConfigError(
                f"{last[2]} and {span[2]} have a part of their memory in common, so a merge of one "
                "would change the other; clone one of them."
            )
        last = max(last, span, key=lambda one: one[1])
