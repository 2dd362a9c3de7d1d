"""AGD: an optimizer that is adaptive where gradients change, and momentum SGD where they do not.

Yue et al., "AGD: an Auto-switchable Optimizer using Stepwise Gradient Difference for
Preconditioning Matrix" (arXiv 2312.01658, algorithm 1). Unlike the published code it keeps no
second trajectory (WIN), does all its arithmetic in fp32 at least, whatever the parameters are in,
and takes FSDP2's DTensors: everything is elementwise, so each rank works on its own part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from syncline.layout import local_part, settle_gradient
from syncline.optim.checks import check_betas, check_dense, check_not_negative
from syncline.optim.states import load_as_they_are
from syncline_proto.errors import ConfigError


class AGD(Optimizer):
    """With gradient g, parameters p, step t (from 1), all products elementwise:

        m_t = beta1 m_{t-1} + (1 - beta1) g
        s_t = m_t / (1 - beta1^t) - m_{t-1} / (1 - beta1^{t-1})       (s_1 = m_1 / (1 - beta1))
        b_t = beta2 b_{t-1} + (1 - beta2) s_t^2
        u_t = m_t / (1 - beta1^t) / max(sqrt(b_t / (1 - beta2^t)), delta)
        p_t = (1 - lr weight_decay) p_{t-1} - lr u_t

    Where the difference s of gradients stays below ``delta`` the step is momentum SGD's with
    lr / delta; elsewhere b stands for curvature. Its lr is about a tenth of AdamW's, and for
    transformers ``delta`` is tiny, so that the step is always adaptive (the authors' advice).
    Parameters of lower precision than fp32 are rounded once a step, at its end: what is less than
    half of their last place moves them not at all, as a decay by itself mostly is.

    State of a parameter: ``step`` (fp32 scalar), ``exp_avg`` (m) and ``exp_avg_difference_sq`` (b),
    the latter two like the parameter, in fp32 at least; with ``amsgrad`` also the largest b so far.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        delta: float = 1e-14,
        weight_decay: float = 0.0,
        clip: float | None = None,
        amsgrad: bool = False,
    ) -> None:
        """
        Args:
            params: parameters, or groups of them.
            lr: learning rate.
            betas: how much of m and of b stays, each in [0, 1).
            delta: the switch, above 0.
            weight_decay: decoupled, and scaled by ``lr``.
            clip: bound of each element of u, before ``lr``; None: none.
            amsgrad: divide by the largest b so far.

        Raises:
            ConfigError: a value is out of its range.
        """
        check_not_negative(lr=lr, weight_decay=weight_decay)
        check_betas(betas)
        if not delta > 0:
            raise ConfigError(
                f"delta is {delta}; it must be above 0, or a gradient of 0 gives NaN."
            )
        if clip is not None and not clip > 0:
            raise ConfigError(f"clip is {clip}; it must be above 0, or None.")
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "delta": delta,
                "weight_decay": weight_decay,
                "clip": clip,
                "amsgrad": amsgrad,
            },
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step; parameters without a gradient stay as they are.

        Raises:
            ConfigError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    check_dense(parameter)
                    settle_gradient(parameter)
                    self._move(parameter, local_part(parameter.grad), group)
        return loss

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self._state_of(parameter, group["amsgrad"])
        state["step"] += 1
        step, (beta1, beta2) = int(state["step"]), group["betas"]
        here = local_part(parameter)
        m, b = local_part(state["exp_avg"]), local_part(state["exp_avg_difference_sq"])
        of_m, of_b = 1 - beta1**step, 1 - beta2**step
        # s takes the memory of the m before; without a step before there is nothing to subtract.
        before = 1 - beta1 ** (step - 1)
        s = m / -before if step > 1 else torch.zeros_like(m)
        m.lerp_(gradient.to(m.dtype), 1 - beta1)
        s.add_(m, alpha=1 / of_m)
        b.mul_(beta2).addcmul_(s, s, value=1 - beta2)
        if group["amsgrad"]:
            most = local_part(state["max_exp_avg_difference_sq"])
            b = torch.maximum(most, b, out=most)
        u = torch.div(b, of_b, out=s).sqrt_().clamp_(min=group["delta"]).reciprocal_()
        u.mul_(m).div_(of_m)
        if group["clip"] is not None:
            u.clamp_(-group["clip"], group["clip"])
        exact = here.to(u.dtype)  # itself, unless it is of lower precision
        if group["weight_decay"]:
            exact.mul_(1 - group["lr"] * group["weight_decay"])
        exact.add_(u, alpha=-group["lr"])
        if exact is not here:
            here.copy_(exact)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As every optimizer does, but a state in fp32 stays so beside parameters in bf16."""
        super().load_state_dict(state_dict)
        load_as_they_are(self, state_dict)

    def _state_of(self, parameter: Tensor, amsgrad: bool) -> dict[str, Any]:
        state = self.state[parameter]
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        names = ["exp_avg", "exp_avg_difference_sq"]
        for name in [*names, "max_exp_avg_difference_sq"] if amsgrad else names:
            if name not in state:
                state[name] = torch.zeros_like(parameter, dtype=dtype)
        state.setdefault("step", torch.zeros((), dtype=torch.float32))
        return state
