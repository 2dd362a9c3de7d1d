"""What the rounds of one replica merge with local-sgd in fp32, by hand: no service, no hooks.

Knows a model of an embedding, two blocks and a head, and when each of these is pushed and merged.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from syncline.blocks import CanonicalNames
from syncline.layout import local_part

EVERY = 2
"""Inner steps between two pushes of a fragment."""


class Merges(Protocol):
    """How a way to train merges, as its settings say."""

    @property
    def warmup(self) -> int: ...

    @property
    def overlap(self) -> int: ...

    @property
    def mix(self) -> float | None: ...

    @property
    def eager(self) -> bool: ...

    @property
    def outer(self) -> float | None: ...

    @property
    def groups(self) -> int: ...


FRAGMENTS = ("embed", "blocks.0", "blocks.1")
"""By the names of what they hold, in forward order; all else is the last one's."""


class Fragment:
    """The rounds of some parameters, of one replica, by hand: local-sgd with an outer step."""

    def __init__(self, parameters: list[nn.Parameter], way: Merges) -> None:
        self._local, self._way = [local_part(parameter) for parameter in parameters], way
        self._anchors = self._values()
        self._momentum, self._echoes = (
            [torch.zeros_like(one) for one in self._local] for _ in range(2)
        )
        self._flight: tuple[list[Tensor], list[Tensor]] | None = None
        """What was pushed, and from where training went on."""
        self._pushed_at = 0

    def lands_by(self, done: int) -> bool:
        return self._flight is not None and done >= self._pushed_at + self._way.overlap

    def push(self, done: int) -> None:
        """After so many steps."""
        pushed, self._pushed_at = self._values(), done
        if self._way.eager:
            mu = self._way.outer or 0.0
            for local, anchor, echo in zip(self._local, self._anchors, self._echoes, strict=True):
                delta = anchor - local
                ahead = (delta * (1 + mu) + echo) * (self._way.outer or 1.0)
                local.copy_(anchor - ahead)
                echo.mul_(mu).add_(delta * mu**2)
        self._flight = pushed, self._values()

    def merge(self, done: int) -> None:
        """Take the outer step, and move the model onto what comes of it; if a push is under way.

        Where the push is of the synchronous phase the anchor is what was pushed, as at its end.
        """
        if self._flight is None:
            return
        (pushed, starts), self._flight = self._flight, None
        trained_on, mu = done > self._pushed_at, self._way.outer or 0.0
        for local, anchor, momentum, value, start in zip(
            self._local, self._anchors, self._momentum, pushed, starts, strict=True
        ):
            delta = anchor - value
            momentum.mul_(mu).add_(delta)
            step = (delta + mu * momentum) * (self._way.outer or 1.0)
            anchor.copy_(anchor - step if self._pushed_at > self._way.warmup else value)
            if not trained_on:
                local.copy_(anchor)
            elif self._way.mix is None:
                local.add_(anchor - start)
            else:
                local.lerp_(anchor, 1 - self._way.mix)

    def bring_in(self, done: int) -> None:
        """Leave with what was trained since the last push."""
        if done > self._pushed_at:
            self.push(done)
            self.merge(done)

    def _values(self) -> list[Tensor]:
        return [one.detach().clone() for one in self._local]


class Rounds:
    """What the rounds of one replica do, by hand."""

    def __init__(self, model: nn.Module, way: Merges) -> None:
        parts: list[list[nn.Parameter]] = [[] for _ in range(len(FRAGMENTS) + 1)]
        names = CanonicalNames(model)
        for raw, parameter in model.named_parameters():
            head = (n for n, of in enumerate(FRAGMENTS) if names(raw).startswith(f"{of}."))
            parts[next(head, len(FRAGMENTS))].append(parameter)
        assert all(parts) and way.groups in (1, 2)
        with torch.no_grad():
            self._fragments = [Fragment(part, way) for part in parts]
        self._groups, self._done = way.groups, 0

    @torch.no_grad()
    def after(self, step: int) -> None:
        """Merge what has landed by now, and push what is due, a group in its turn."""
        self._done = step + 1
        for fragment in self._fragments:
            if fragment.lands_by(self._done):
                fragment.merge(self._done)
        for number, fragment in enumerate(self._fragments):
            if self._is_due(number):
                fragment.push(self._done)
        for fragment in self._fragments:
            if fragment.lands_by(self._done):  # at once, before the next step
                fragment.merge(self._done)

    @torch.no_grad()
    def end(self) -> None:
        for fragment in self._fragments:
            fragment.merge(self._done)
        for fragment in self._fragments:
            fragment.bring_in(self._done)

    def _is_due(self, number: int) -> bool:
        if self._groups == 1:
            return self._done % EVERY == 0
        return (self._done - 1) % self._groups == number % self._groups
