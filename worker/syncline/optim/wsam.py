"""WSAM: any optimizer, led towards flat minima by the gradient at a point nearby.

Yue et al., "Sharpness-Aware Minimization Revisited: Weighted Sharpness as a Regularization Term"
(arXiv 2305.15817, algorithm 2). A step takes two backward passes:

    loss(model(batch)).backward()
    optimizer.perturb()
    loss(model(batch)).backward()
    optimizer.step()

Unlike the published code it never talks to other replicas (that reduces over the default process
group, and so would synchronise all of them at every step): a norm is of the parameters' own ranks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from syncline.layout import local_part, settle_gradient
from syncline.norms import whole_norm
from syncline.optim.checks import check_dense, check_not_negative
from syncline_proto.errors import ConfigError

_TINY = 1e-12
"""Keeps a gradient of zeros from dividing by zero."""

Hook = Callable[[], None]


class WSAM(Optimizer):
    """Around a base optimizer, with g the gradient, p the parameters, a = gamma / (1 - gamma):

        e  = rho g / ||g||                      (adaptive: rho p^2 g / || |p| g ||)
        g' = gradient at p + e
        decoupled:  p = base(p, g);  p -= lr a (g' - g)
        else:       p = base(p, (1 - a) g + a g')

    ``gamma`` 0 is the base optimizer alone, 0.5 is SAM; the authors take 0.9, and 0.5 to 0.8 is
    where to begin with language models. Groups and state are the base optimizer's own, so a state
    dict is, too: between ``perturb`` and ``step`` there is more, and it is no moment to save. Where
    every learning rate is 0 there need be no second gradient: so ``torch.distributed.checkpoint``
    makes the state that it loads into.

    The norm is over all parameters of all ranks that share them; FSDP2's must be resharded after
    each backward pass, as they are unless asked otherwise. The gradient that perturbs is the mean
    over all ranks, where they average theirs. Running statistics (BatchNorm's) move in both passes:
    the optimizer does not know the model, so set their ``momentum`` to 0 for the second yourself.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        gamma: float = 0.9,
        adaptive: bool = False,
        decouple: bool = True,
    ) -> None:
        """
        Args:
            base: takes the step.
            rho: length of the perturbation e.
            gamma: weight of sharpness, in [0, 1).
            adaptive: scale e by the parameters' size.
            decouple: add the sharpness after the base optimizer's step, which does not see it.

        Raises:
            ConfigError: a value is out of its range.
        """
        check_not_negative(rho=rho)
        if not 0 <= gamma < 1:
            raise ConfigError(f"gamma is {gamma}; it must be at least 0 and below 1.")
        super().__init__(base.param_groups, base.defaults)
        self.base = base
        self.rho, self.alpha = rho, gamma / (1 - gamma)
        self.adaptive, self.decouple = adaptive, decouple
        self.param_groups, self.state = base.param_groups, base.state
        self._before: dict[Tensor, tuple[Tensor, Tensor]] | None = None
        """Values and gradients of this rank's parts, where the perturbation began."""
        self._hooks: OrderedDict[int, Hook] = OrderedDict()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Give the base optimizer more parameters, which it may refuse: it is who steps them."""
        if not hasattr(self, "base"):  # while this one is made
            super().add_param_group(param_group)
            return
        self.base.add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the base optimizer its state back."""
        self.base.load_state_dict(state_dict)
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def register_perturb_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook`` before parameters are perturbed: what must be written comes now."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    @property
    def is_perturbed(self) -> bool:
        """Whether the parameters are elsewhere just now, until ``step``."""
        return self._before is not None

    @torch.no_grad()
    def perturb(self) -> None:
        """Move the parameters uphill, to where the second gradient is taken. Collective.

        Raises:
            ConfigError: it was done already, or a gradient is sparse.
        """
        if self.is_perturbed:
            raise ConfigError("The parameters are perturbed already; call step() after perturb().")
        for hook in self._hooks.values():
            hook()
        moved = [p for p in self._parameters() if p.grad is not None]
        for parameter in moved:
            check_dense(parameter)
            settle_gradient(parameter)
        scale = self.rho / (self._norm(moved) + _TINY)
        before: dict[Tensor, tuple[Tensor, Tensor]] = {}
        for parameter in moved:
            here, gradient = local_part(parameter), local_part(_gradient_of(parameter))
            before[parameter] = (here.clone(), gradient)
            uphill = gradient * here.square() if self.adaptive else gradient
            here.add_(uphill.to(here.dtype), alpha=scale)
        self.zero_grad(set_to_none=True)
        self._before = before

    @torch.no_grad()
    def abandon(self) -> None:
        """Go back and take no step, as where the second gradient is not finite."""
        before, self._before = self._before or {}, None
        for parameter, (values, _) in before.items():
            local_part(parameter).copy_(values)
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Go back, and take the step of both gradients.

        Raises:
            ConfigError: ``perturb`` was not called and there is something to step by, or there is
                a closure.
        """
        if closure is not None:
            raise ConfigError("WSAM takes no closure; call perturb() between two backward passes.")
        if self._before is None:
            if not any(group["lr"] for group in self.param_groups):
                self.base.step()
                return
            raise ConfigError(
                "WSAM needs two gradients: call perturb() after the first backward pass."
            )
        before, self._before = self._before, None
        away = {
            parameter: self._gone_back(parameter, before.get(parameter))
            for parameter in self._parameters()
            if parameter in before or parameter.grad is not None
        }
        self.base.step()
        for group in self.param_groups if self.decouple else []:
            for parameter in group["params"]:
                if parameter in away:
                    here = local_part(parameter)
                    here.add_(away[parameter].to(here.dtype), alpha=-group["lr"] * self.alpha)

    def _gone_back(self, parameter: Tensor, kept: tuple[Tensor, Tensor] | None) -> Tensor:
        """Restore a parameter's values, and make its gradient the base optimizer's; g' - g.

        A gradient that only one pass has is zero in the other.
        """
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        settle_gradient(parameter)
        gradient = local_part(_gradient_of(parameter))
        values, first = kept or (None, torch.zeros_like(gradient))
        if values is not None:
            local_part(parameter).copy_(values)
        difference = gradient - first
        gradient.copy_(first)
        if not self.decouple:
            gradient.add_(difference, alpha=self.alpha)
        return difference

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _norm(self, parameters: list[Tensor]) -> float:
        gradients = ((parameter, _gradient_of(parameter)) for parameter in parameters)
        return whole_norm(p.detach().abs() * g if self.adaptive else g for p, g in gradients)


def _gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
