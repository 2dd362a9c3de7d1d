"""Values of a model on their way into a payload: straight from where they lie, or by a window.

Codecs that subtract as they encode take long stretches of a model on the CPU in one pass. All else
goes through a window, which fits into the processor's cache, so what is subtracted and encoded
there goes through memory once, too. What does not lie in one stretch is copied whole before. Knows
nothing of fragments, revisions or services.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from syncline.core.progress import pseudo_gradient
from syncline_proto.codec import Codec, Float32, UInt8, UInt16

WINDOW = 1 << 18
"""Elements; a multiple of every codec's grain, and so of its block."""


@dataclass(frozen=True, slots=True)
class Part:
    """Values that lie in one tensor: themselves, or what an anchor has more than they."""

    values: Tensor
    """Detached; of any shape, type and device."""
    anchor: Float32 | UInt16 | Tensor | None = None
    """fp32, or bf16 (on the CPU as its bits); flat, as many as the values. A tensor lies on their
    device."""


def to_send(part: Part) -> Tensor:
    """The values; where their anchor lies on their device, what it has more, computed there."""
    if not isinstance(part.anchor, Tensor):
        return part.values
    return _less(part.anchor.view(part.values.shape), part.values)


class Window:
    """Memory through which one thread gathers; what is in it is not looked at in between."""

    def __init__(self) -> None:
        self._memory = np.empty(WINDOW, np.float32)

    def gather(self, parts: Iterable[Part], codec: Codec, out: UInt8) -> None:
        """Encode ``parts``, one after another, as one payload: ``out``, of just its size."""
        writing = _Writing(self._memory, codec, out)
        for part in parts:
            writing.take(part.values.reshape(-1), part.anchor)
        writing.flush()


@dataclass(slots=True)
class _Writing:
    """A payload while it is written."""

    window: Float32
    codec: Codec
    out: UInt8
    encoded: int = 0
    """Bytes of ``out``."""
    filled: int = 0
    """Values in the window, which come next."""

    def take(self, values: Tensor, anchor: Float32 | UInt16 | Tensor | None) -> None:
        """Encode what comes next, but for some that stay in the window; flat."""
        if isinstance(anchor, np.ndarray) and anchor.dtype == np.uint16:
            plain = values.is_cpu and values.dtype == torch.float32
            if plain and self._take_less(anchor.view(np.uint16), values.numpy()):
                return
        at = 0
        while (left := values.numel() - at) > 0:
            count = min(left, WINDOW - self.filled)
            part = None if anchor is None else anchor[at : at + count]
            _read(values[at : at + count], part, self.window[self.filled : self.filled + count])
            at, self.filled = at + count, self.filled + count
            if self.filled == WINDOW:
                self.flush()

    def flush(self) -> None:
        """Encode what is in the window."""
        end = self.encoded + self.codec.size(self.filled)
        self.codec.encode_into(self.window[: self.filled], self.out[self.encoded : end])
        self.encoded, self.filled = end, 0

    def _take_less(self, anchor: UInt16, values: Float32) -> bool:
        """Encode what is in the window, and anchor - values from where they lie.

        Whether the codec does that. What fills no block of it stays in the window.
        """
        whole = self.filled + values.size
        end = self.encoded + self.codec.size(whole - whole % self.codec.block)
        out = self.out[self.encoded : end]
        over = self.codec.encode_less(self.window, self.filled, anchor, values, out)
        if over is None:
            return False
        self.encoded, self.filled = end, over
        return True


def _read(values: Tensor, anchor: Float32 | UInt16 | Tensor | None, out: Float32) -> None:
    """Write ``values``, or anchor - values, to ``out``: fp32, as many; all flat."""
    if isinstance(anchor, Tensor):
        values, anchor = _less(anchor, values), None
    if anchor is not None and values.is_cpu and values.dtype == torch.float32:
        pseudo_gradient(anchor, values.numpy(), out=out)
        return
    torch.from_numpy(out).copy_(values)
    if anchor is not None:
        pseudo_gradient(anchor, out, out=out)


def _less(anchor: Tensor, values: Tensor) -> Tensor:
    """anchor - values, in fp32 and of one rounding, as ``pseudo_gradient``: new, on their device.

    Values of another type are taken in fp32 first.
    """
    return anchor.to(torch.float32, copy=True).sub_(values.to(torch.float32))
