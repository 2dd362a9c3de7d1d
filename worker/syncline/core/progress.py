"""How a replica's progress is measured, and how it moves onto another anchor.

Pure arithmetic on flat fp32 tensors of equal length. With outer lr 1, no momentum and one replica
the service computes anchor - (anchor - current), which is ``current`` to within one ulp of
max(|anchor|, |current|): one rounding here, one there, each of at most half an ulp.
"""

from __future__ import annotations

import torch
from torch import Tensor

PIECE = 1 << 19
"""Elements worked on at a time: a bf16 anchor becomes fp32 in memory of this size, no more. For 50M
parameters, in a loop of one thread, 45 ms of CPU time; 49 with a quarter of it, 60 with an eighth,
109 with a copy, a negation and a sum of whole fragments (on a busy machine)."""


def pseudo_gradient(anchor: Tensor, current: Tensor, out: Tensor) -> Tensor:
    """anchor - current: positive where the replica has already descended. One pass over memory.

    Args:
        anchor: fp32 or bf16, flat.
        current: fp32, flat; may be ``out`` itself.
        out: fp32, flat; written and returned.
    """
    for part in zip(*(flat.split(PIECE) for flat in (anchor, current, out)), strict=True):
        torch.sub(part[0], part[1], out=part[2])
    return out


def rebased(new_anchor: Tensor, old_anchor: Tensor, current: Tensor) -> Tensor:
    """new anchor + (current - old anchor): the same progress, from another start (fp32)."""
    return (current - old_anchor).add_(new_anchor)
