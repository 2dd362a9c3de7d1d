"""What a loop tells of its training, from when it does until it is known.

A GPU may still be computing a loss that it is given. Nobody waits for that: it is copied out behind
what the GPU was told before, and is read once it has come. Decides nothing of what is told.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from structlog.typing import FilteringBoundLogger
from torch import Tensor

from syncline.stats import number_of
from syncline.voice import own_rank, voice
from syncline_proto.rest import LossPoint

PENDING_MAX = 64
"""Reports on their way from a GPU; who is further ahead of it waits for the oldest."""


Curve = Literal["train", "held-out", "merged"]


class Moment(NamedTuple):
    """When a loop has told of something."""

    tokens: int
    """Of the run."""
    inner_step: int


class Figure:
    """One number; of a GPU, on its way from there.

    Raises:
        ConfigError: it is none.
    """

    def __init__(self, value: float | Tensor, name: str) -> None:
        self._came: torch.cuda.Event | None = None
        if not (isinstance(value, Tensor) and is_on_its_way(value)):
            self._value: float | Tensor = number_of(value, name)
            return
        # A copy: what a loop calls its loss may be written anew by its next step.
        pinned = torch.empty((), dtype=value.dtype, pin_memory=True)
        pinned.copy_(value.detach().reshape(()), non_blocking=True)
        self._value, self._came = pinned, torch.cuda.Event()
        self._came.record(torch.cuda.current_stream(value.device))

    @property
    def is_known(self) -> bool:
        return self._came is None or self._came.query()

    def number(self) -> float:
        """Once it is known."""
        if self._came is not None:
            self._came.synchronize()
        return float(self._value)


def is_on_its_way(value: Tensor) -> bool:
    """Whether a GPU may have this number yet to compute, of which a copy may wait."""
    return type(value) in (Tensor, torch.nn.Parameter) and (
        value.is_cuda and value.numel() == 1 and not value.is_complex()
    )


class Reports:
    """The reports of one life; any thread may see to those that have become known.

    Invariants:
        - they are told in their order, each once;
        - ``said`` is replaced whole, so any thread may read it.
    """

    def __init__(self) -> None:
        self.said: Mapping[str, float] = {}
        """The last figures of each kind that were finite."""
        self.points: Callable[[LossPoint], None] = lambda point: None
        """Where points of loss curves go."""
        self._pending: deque[tuple[dict[str, Figure], Moment]] = deque()
        self._odd_losses = OddLosses()
        self._lock = threading.Lock()

    def add(self, given: Mapping[str, float | Tensor | None], when: Moment) -> None:
        """Tell of these once they are known; the loss becomes a point of its curve.

        Raises:
            ConfigError: one is no number.
        """
        figures = {key: Figure(one, key) for key, one in given.items() if one is not None}
        with self._lock:
            self._pending.append((figures, when))
            if len(self._pending) > PENDING_MAX:
                self._pass_on()
            self._see()

    def add_point(self, kind: Curve, loss: float, when: Moment) -> None:
        if math.isfinite(loss):
            tokens, step = when
            self.points(LossPoint(kind=kind, tokens=tokens, loss=loss, inner_step=step))

    def see(self) -> None:
        """Tell of those that are known by now."""
        with self._lock:
            try:
                self._see()
            except RuntimeError:
                self._pending.clear()  # a GPU that has failed: what trains on it says so itself

    def finish(self) -> None:
        """Tell of all; waits for what is still computed."""
        with self._lock:
            while self._pending:
                self._pass_on()

    def _see(self) -> None:
        while self._pending and all(one.is_known for one in self._pending[0][0].values()):
            self._pass_on()

    def _pass_on(self) -> None:
        figures, when = self._pending.popleft()
        told = {key: figure.number() for key, figure in figures.items()}
        self.said = {**self.said, **{key: one for key, one in told.items() if math.isfinite(one)}}
        if (loss := told.get("loss")) is not None:
            self.add_point("train", loss, when)
            self._odd_losses.see(loss, voice(own_rank()))


class OddLosses:
    """Losses of a loop that are not finite, told of ever more seldom."""

    def __init__(self) -> None:
        self._count = 0

    def see(self, loss: float, log: FilteringBoundLogger) -> None:
        if math.isfinite(loss):
            return
        self._count += 1
        if self._count.bit_count() == 1:  # the first, the second, the fourth
            so = "it is left out of what is shown; see the model, the data and the learning rate"
            log.warning("loss.not_finite", loss=loss, so_far=self._count, so=so)
