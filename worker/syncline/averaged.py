"""Whether anything averages the gradients of parameters of which several ranks hold the same.

``fully_shard`` and DDP do, and so may a loop of one's own; tensor parallelism makes them equal by
itself. Where nothing does, each rank trains a copy of its own, and all but the one that is pushed
would be for nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from syncline.blocks import CanonicalNames
from syncline.layout import box_of, local_part, senders_of, settle_gradient
from syncline.ranks import Ranks
from syncline_proto.errors import ConfigError

NORMS_RTOL = 1e-3
"""Between norms of one gradient on two ranks: far over rounding, far below another batch's."""


class Averaged:
    """The parameters of one model of which several ranks hold the same values, all or a part."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        """Collective; the ranks have the same model."""
        names, everyone = CanonicalNames(model), tuple(range(ranks.count))
        owned = [(names(raw), p) for raw, p in model.named_parameters() if p.requires_grad]
        boxes = [box_of(i, name, p, ranks) for i, (name, p) in enumerate(owned)]
        self._ranks, self._owned = ranks, owned
        self._copied = [
            (name, parameter, senders)
            for (name, parameter), senders in zip(owned, senders_of(boxes, ranks), strict=True)
            if senders != everyone
        ]

    def settle(self) -> None:
        """Let all gradients lie as their parameters do. Collective."""
        for _, parameter in self._owned:
            settle_gradient(parameter)

    def check_dense(self) -> None:
        """Refuse sparse gradients, before any is averaged.

        Raises:
            ConfigError: a gradient is sparse.
        """
        for name, parameter in self._owned:
            gradient = parameter.grad
            if gradient is not None and local_part(gradient).layout is not torch.strided:
                raise ConfigError(
                    f"The gradient of {name} is sparse, which the synchronous phase cannot "
                    "average; build its layer with sparse=False, or create the run without "
                    "warmup_steps."
                )

    def see(self, steps: int) -> None:
        """See that their gradients are the same on all ranks before the first step. Collective.

        ``steps`` are those made: what averages the first gradients averages the later ones too.

        Raises:
            ConfigError: one is not; on all ranks.
        """
        if steps or not self._copied:
            return
        self.settle()
        norms = torch.tensor([_norm(p.grad) for _, p, _ in self._copied], dtype=torch.float64)
        told = torch.tensor(self._ranks.gather(norms.view(torch.int64).tolist()))
        for every, (name, _, senders) in zip(
            told.view(torch.float64).unbind(1), self._copied, strict=True
        ):
            sent = every[list(senders)]
            if not torch.allclose(every, sent, rtol=NORMS_RTOL, atol=0.0, equal_nan=True):
                raise ConfigError(
                    f"The ranks of this replica have different gradients of {name}, so each "
                    "trains a copy of its own and only one would count; wrap the whole model with "
                    "fully_shard or DistributedDataParallel, or average its gradients over the "
                    "ranks before each step; ranks that share it by tensor parallelism must train "
                    "on the same batches."
                )


def _norm(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else local_part(gradient).float().norm().item()
