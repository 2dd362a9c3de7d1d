"""How a replica's progress is measured, and how it moves onto another anchor.

Pure arithmetic on flat vectors of equal length. With outer lr 1, no momentum and one replica
the service computes anchor - (anchor - current), which is ``current`` to within one ulp of
max(|anchor|, |current|): one rounding here, one there, each of at most half an ulp.
"""

from __future__ import annotations

import numpy as np

from syncline_proto.codec import Float32, UInt16
from syncline_proto.compiled import compiled, read, written

_16 = np.uint32(16)


def pseudo_gradient(anchor: Float32 | UInt16, current: Float32, out: Float32) -> Float32:
    """anchor - current: positive where the replica has already descended. One pass over memory.

    Compiled, since threads that push want Python's lock meanwhile, and each call of torch or numpy
    lets go of it: with torch's, 50M parameters took 75 ms of CPU time, and 200 to 280 ms until the
    last of them could be pushed.

    Args:
        anchor: fp32, or bf16 as its bits; flat.
        current: fp32, flat; may be ``out`` itself.
        out: fp32, flat; written and returned.
    """
    if anchor.dtype == np.float32:
        _less(anchor.view(np.float32), current, out)
    else:
        _less_of_bf16(anchor.view(np.uint16), current, out)
    return out


@compiled("void", read("float32"), read("float32"), written("float32"))
def _less(anchor: Float32, current: Float32, out: Float32) -> None:
    for i in range(out.size):
        out[i] = anchor[i] - current[i]


@compiled("void", read("uint16"), read("float32"), written("float32"))
def _less_of_bf16(anchor: UInt16, current: Float32, out: Float32) -> None:
    for i in range(out.size):
        before = np.uint32(np.uint32(anchor[i]) << _16).view(np.float32)
        out[i] = before - current[i]


def rebased(new_anchor: Float32, old_anchor: Float32, current: Float32) -> Float32:
    """new anchor + (current - old anchor): the same progress, from another start (fp32, flat)."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite, the service judges
        moved: Float32 = current - old_anchor
        moved += new_anchor
    return moved


def corrected(fresh: Float32, start: Float32) -> Float32:
    """fresh - start: what others brought to a value that training has left since (fp32, flat).

    Added to where training is now, it keeps what was trained on meanwhile. Where nobody brought
    anything it is exactly 0, so that training goes on as if nothing had been.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite, the service judges
        return fresh - start
