"""Whether anything averages the gradients of parameters that every rank holds whole.

``fully_shard`` and DDP do, and so may a loop of one's own. Where nothing does, each rank trains a
copy of its own, and all but rank 0's, which alone is pushed, would be for nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from syncline.blocks import CanonicalNames
from syncline.ranks import Ranks
from syncline_proto.errors import ConfigError

NORMS_RTOL = 1e-3
"""Between norms of one gradient on two ranks: far over rounding, far below another batch's."""


class Averaged:
    """The parameters of one model that are on every rank of its replica."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._ranks, names = ranks, CanonicalNames(model)
        self._whole = [
            (names(raw), parameter)
            for raw, parameter in model.named_parameters()
            if ranks.count > 1 and parameter.requires_grad and not isinstance(parameter, DTensor)
        ]

    def see(self, steps: int) -> None:
        """See that their gradients are the same on all ranks before the first step. Collective.

        ``steps`` are those made: what averages the first gradients averages the later ones too.

        Raises:
            ConfigError: one is not; on all ranks.
        """
        if steps or not self._whole:
            return
        norms = torch.tensor([_norm(p.grad) for _, p in self._whole], dtype=torch.float64)
        told = torch.tensor(self._ranks.gather(norms.view(torch.int64).tolist()))
        every = told.view(torch.float64)
        alike = torch.isclose(every, every[0], rtol=NORMS_RTOL, atol=0.0, equal_nan=True).all(0)
        for (name, _), is_alike in zip(self._whole, alike.tolist(), strict=True):
            if not is_alike:
                raise ConfigError(
                    f"The ranks of this replica have different gradients of {name}, so each "
                    "trains a copy of its own and only rank 0's would count; wrap the whole "
                    "model with fully_shard or DistributedDataParallel, or average its "
                    "gradients over the ranks before each step."
                )


def _norm(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else gradient.detach().float().norm().item()
