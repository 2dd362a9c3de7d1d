"""Without rounds that wait: every push is an outer step, the momentum moves once in a window.

Delayed Nesterov (arXiv 2401.09135, algorithm 2, with c = 0), in windows of N pushes. With mu and lr
of the outer optimizer, g_i = min(w_i, 2) a_i D_i, and m the momentum that the last window left:

    theta -= lr g_i / N                                            with each of the first N - 1
    m = mu m + (sum of g_i) / N ;  theta -= lr (mu m + g_N / N)    with the last

So N pushes of equal weight, none late, are one step of Nesterov's on their mean. The paper keeps
the sum in a buffer beside m. Here it grows inside m, which no step takes before the window ends, so
it takes no memory: the first push scales m by mu, and each adds g_i / N. With the paper's c > 0
every step would take m, too; it found c = 0 best. Where directions are corrected (``direction``),
a push's is by m as it stands, with what the window has brought so far.

Pushes that waited for the minimum are one step, and all of one window, which then may end with more
than N of them.

    w_i  as in a round (EDiT's), but against the last N pushes: it is 1 where all are alike
    a_i  what the push's age leaves, which begins with the N-th revision (``staleness``)

Pure; what is remembered is a ``Window``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from syncline_proto.merging import OuterSettings
from syncline_proto.settings import RunSettings
from syncline_sync.core.weights import Scale

WEIGHT_MAX = 2.0
"""Of a push, where the mean of its window is 1."""

AGE_EMA = 0.1
"""Of a push's base in the running mean of their age."""


@dataclass(frozen=True, slots=True)
class Carry:
    """An outer step on D: m = keep m + D; theta -= lr (D + ahead m)."""

    keep: float
    ahead: float


@dataclass(frozen=True, slots=True)
class Window:
    """What a fragment remembers of its pushes."""

    size: int = 0
    """N of the window that is open, or was last."""
    done: int = 0
    """Pushes in the open one."""
    number: int = 0
    """Windows that are over."""
    age: float = 0.0
    """Running mean of how far the pushes' bases lie behind, in rounds; on time or not."""
    recent: tuple[tuple[float, int], ...] = ()
    """Norm and inner steps of the last ``size`` pushes."""

    def size_now(self, settings: RunSettings, replicas: int) -> int:
        """N for the next push: frozen within a window. ``replicas`` take part."""
        return self.size if self.done else settings.window or max(1, replicas)

    def carry(self, accepted: int, size: int, outer: OuterSettings) -> Carry:
        """What the outer step of so many pushes does to the momentum."""
        keep = 1.0 if self.done else outer.momentum
        if not self.done and outer.restart_every and self.number % outer.restart_every == 0:
            keep = 0.0
        return Carry(keep, outer.momentum if self.done + accepted >= size else 0.0)

    def after(self, size: int, pushes: Sequence[tuple[float, int, int]]) -> Window:
        """With accepted pushes more: the norm, inner steps and age of each."""
        done, age = self.done + len(pushes), self.age
        for _, _, revisions in pushes:
            age += AGE_EMA * (revisions / size - age)
        recent = (*self.recent, *((norm, steps) for norm, steps, _ in pushes))[-size:]
        is_over = done >= size
        return Window(size, 0 if is_over else done, self.number + is_over, age, recent)

    def weight(self, scale: Scale, settings: RunSettings, norm: float, steps: int) -> float:
        """w of an accepted push: its part of the sum with the last ones, times their number."""
        power, every = settings.penalty.step_power, settings.sync_every
        mine = [*self.recent, (norm, steps)]
        logs = [
            power * math.log(n / every) - (g / scale.temperature if scale.temperature else 0.0)
            for g, n in mine
        ]
        highest = max(logs)
        parts = [math.exp(one - highest) for one in logs]
        return min(WEIGHT_MAX, len(parts) * parts[-1] / math.fsum(parts))


def guarded(outer: OuterSettings, age: float) -> OuterSettings:
    """The outer optimizer with its lr bounded by the mean age d of pushes' bases, in rounds.

        lr <= age_guard (1 - mu) 2 sin(pi / (4 d + 2))        where d > 1

    The bound of lr / (1 - mu) beyond which a linear model with delay d does not settle, if every
    push undoes its whole error (age_guard = 1); real pushes undo a part, so 2 is usual.
    """
    if outer.age_guard is None or age <= 1.0:
        return outer
    bound = outer.age_guard * (1.0 - outer.momentum) * 2.0 * math.sin(math.pi / (4.0 * age + 2.0))
    return outer.model_copy(update={"lr": min(outer.lr, bound)})


def of_window(outer: OuterSettings, size: int) -> OuterSettings:
    """The clip is meant for a push, and the merge divides it by N."""
    return outer if outer.clip is None else outer.model_copy(update={"clip": outer.clip / size})


def forgotten(window: Window) -> Window:
    """Without the norms, where they cannot be compared with those to come."""
    return replace(window, recent=())
