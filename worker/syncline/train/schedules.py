"""The inner learning rate as a function of the run's tokens.

Pure. Tokens, not steps: replicas of different speed and size then agree on where the run stands,
and a joiner starts at everyone's learning rate instead of its own warm-up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from syncline.train.sections import OptimizerSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Linear warm-up, then cosine, warm-up-stable-decay (wsd), or nothing more (constant).

    Invariants:
        - continuous in tokens; between 0 and ``peak`` everywhere;
        - from the end of the warm-up on it never rises;
        - at ``total_tokens`` and after, it is ``peak * min_ratio`` (but for constant).

    Sources: cosine is SGDR's without restarts (arXiv 1608.03983); wsd is MiniCPM's (2404.06395),
    with the linear decay of 2405.18392.
    """

    kind: Literal["cosine", "wsd", "constant"]
    peak: float
    warmup_tokens: int = 0
    total_tokens: int | None = None
    """None for a run without an end, which only constant can have."""
    decay_share: float = 0.2
    min_ratio: float = 0.1

    @classmethod
    def of(cls, section: OptimizerSection, total_tokens: int | None) -> Schedule:
        """The one that a job asks for, in a run of so many tokens."""
        return cls(
            kind=section.schedule,
            peak=section.lr,
            warmup_tokens=section.warmup_tokens,
            total_tokens=total_tokens,
            decay_share=section.decay_share,
            min_ratio=section.min_lr_ratio,
        )

    def __post_init__(self) -> None:
        assert self.kind == "constant" or self.total_tokens is not None
        assert self.total_tokens is None or self.warmup_tokens < self.total_tokens

    def lr(self, tokens: int) -> float:
        """The learning rate of the step that brings the run to ``tokens``."""
        if tokens < self.warmup_tokens:
            return self.peak * tokens / self.warmup_tokens
        return self.peak * self._share(tokens)

    def _share(self, tokens: int) -> float:
        """What is left of the peak after the warm-up, ``min_ratio`` to 1."""
        if self.kind == "constant":
            return 1.0
        assert self.total_tokens is not None
        start = self.warmup_tokens
        if self.kind == "wsd":
            # A decay longer than what the warm-up leaves would jump where they meet.
            decay = max(1, round(self.decay_share * self.total_tokens))
            start = max(start, self.total_tokens - decay)
        span = self.total_tokens - start
        done = min(1.0, max(0.0, (tokens - start) / span))
        falling = 0.5 * (1.0 + math.cos(math.pi * done)) if self.kind == "cosine" else 1.0 - done
        return self.min_ratio + (1.0 - self.min_ratio) * falling
