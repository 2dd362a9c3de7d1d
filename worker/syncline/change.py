"""A difference that was pulled, before it is added to the anchor: as it came, and checked.

It is added where the anchor lies and written into the model in one pass, when that may change: as
new anchor first and into the model later it goes through memory twice. Knows nothing of calls,
services or fragments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from syncline_proto.codec import Bytes, Count, Follower, UInt16, carry
from syncline_proto.spans import Spans

LONG = 4096
"""Elements of a span, tensor or chunk, on average, from which on a change is kept: each is gone
through by itself, and the training thread waits for it."""


@dataclass(slots=True)
class Change:
    """From a published value that is held to the next one."""

    held: UInt16
    """bf16, as bits, flat."""
    spans: Spans
    """Where that lies in its fragment."""
    chunks: list[Bytes] = field(default_factory=list[Bytes])
    """Of the difference, all before it lands; a ``Follower`` has found nothing wrong with them."""
    _done: Count = field(default_factory=lambda: np.zeros(1, np.int64))

    def made(self, out: UInt16) -> UInt16:
        """Write the next value, as far as it has come, to ``out``; ``held`` stays as it is."""
        follower, filled = Follower(self.held, self.spans), 0
        for chunk in self.chunks:
            filled += follower.follow(chunk, out[filled:])
        return out

    def land(self, tensors: Sequence[Tensor]) -> None:
        """Make ``held`` the next value, and write that into ``tensors``.

        Where it is broken off, by a signal say, it may be called again. Where the loop has laid out
        a tensor anew meanwhile, so that it is none that ``takes`` takes, it is written after that.
        """
        direct = [takes([tensor]) for tensor in tensors]
        outs = [
            tensor.reshape(-1).numpy() if is_direct else np.empty(tensor.numel(), np.float32)
            for tensor, is_direct in zip(tensors, direct, strict=True)
        ]
        carry(self.chunks, self.held, self.spans, outs, self._done)
        for tensor, out, is_direct in zip(tensors, outs, direct, strict=True):
            if is_direct:
                torch.autograd.graph.increment_version(tensor)
            else:
                tensor.copy_(torch.from_numpy(out).view(tensor.shape))


def takes(tensors: Iterable[Tensor]) -> bool:
    """Whether detached tensors lie in memory as ``land`` writes: fp32, on the CPU, without gaps."""
    return all(t.is_cpu and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)


def is_long(elements: int, parts: int) -> bool:
    """Whether to go through so many elements in so many parts is quick: see ``LONG``."""
    return elements >= LONG * parts
