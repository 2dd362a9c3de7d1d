"""How a replica's progress is measured, and how it moves onto another anchor.

Pure arithmetic on flat fp32 tensors of equal length. With outer lr 1, no momentum and one replica
the service computes anchor - (anchor - current), which is ``current`` to within one ulp of
max(|anchor|, |current|): one rounding here, one there, each of at most half an ulp.
"""

from __future__ import annotations

from torch import Tensor


def pseudo_gradient(anchor: Tensor, current: Tensor, out: Tensor) -> Tensor:
    """anchor - current: positive where the replica has already descended.

    Args:
        anchor: fp32 or bf16, flat.
        current: fp32, flat; may be ``out`` itself.
        out: fp32, flat; written and returned.
    """
    out.copy_(current)
    return out.neg_().add_(anchor)


def rebased(new_anchor: Tensor, old_anchor: Tensor, current: Tensor) -> Tensor:
    """new anchor + (current - old anchor): the same progress, from another start (fp32)."""
    return (current - old_anchor).add_(new_anchor)
