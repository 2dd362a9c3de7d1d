"""Values of a model on their way into a payload, a window of them at a time.

A window fits into the processor's cache, so what is subtracted and encoded there goes through
memory once: read where the model has it, written as it will be sent. Of a GPU the window is pinned
memory. What does not lie in one stretch is copied whole before. Knows nothing of fragments,
revisions or services.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from syncline.core.progress import pseudo_gradient
from syncline_proto.codec import Codec, Float32, UInt8, UInt16

WINDOW = 1 << 18
"""Elements; a multiple of every codec's grain."""


@dataclass(frozen=True, slots=True)
class Part:
    """Values that lie in one tensor: themselves, or what an anchor has more than they."""

    values: Tensor
    """Detached; of any shape, type and device."""
    anchor: Float32 | UInt16 | None = None
    """fp32, or bf16 as its bits; flat, as many as the values."""


class Window:
    """Memory through which one thread gathers; what is in it is not looked at in between."""

    def __init__(self, *, pinned: bool) -> None:
        """``pinned``: what is gathered lies on a GPU."""
        self._memory: Float32 = torch.empty(WINDOW, pin_memory=pinned).numpy()

    def gather(self, parts: Iterable[Part], codec: Codec, out: UInt8) -> None:
        """Encode ``parts``, one after another, as one payload: ``out``, of just its size."""
        encoded = filled = 0
        for part in parts:
            flat, at = part.values.reshape(-1), 0
            while at < flat.numel():
                count = min(flat.numel() - at, WINDOW - filled)
                anchor = None if part.anchor is None else part.anchor[at : at + count]
                _read(flat[at : at + count], anchor, self._memory[filled : filled + count])
                at, filled = at + count, filled + count
                if filled == WINDOW:
                    encoded, filled = self._encode(filled, codec, out, encoded), 0
        self._encode(filled, codec, out, encoded)

    def _encode(self, filled: int, codec: Codec, out: UInt8, at: int) -> int:
        """Write what is in the window to ``out`` from byte ``at`` on; the byte after it."""
        end = at + codec.size(filled)
        codec.encode_into(self._memory[:filled], out[at:end])
        return end


def _read(values: Tensor, anchor: Float32 | UInt16 | None, out: Float32) -> None:
    """Write ``values``, or anchor - values, to ``out``: fp32, as many; all flat."""
    if anchor is not None and values.is_cpu and values.dtype == torch.float32:
        pseudo_gradient(anchor, values.numpy(), out=out)
        return
    torch.from_numpy(out).copy_(values)
    if anchor is not None:
        pseudo_gradient(anchor, out, out=out)
