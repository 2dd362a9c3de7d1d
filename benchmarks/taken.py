"""What Syncline takes of the thread that trains, by what was called: the clock of overhead.py.

Stands between a replica's hooks and what they call, and changes nothing of either.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from syncline.hooks import Hooks

WAITS = ("skips",)
"""What of a replica looks at values."""


class Trains(Protocol):
    """A loop, as far as is needed here."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> Optimizer: ...


class Instant:
    """Now; of a GPU when that will have done what it was told so far."""

    def __init__(self, device: str) -> None:
        self.is_of_gpu = device == "cuda"
        if self.is_of_gpu:
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
        self._s = time.perf_counter()

    def until(self, later: Instant) -> float:
        """Seconds; of a GPU once it has come to both."""
        if self.is_of_gpu:
            return self._event.elapsed_time(later._event) / 1e3
        return later._s - self._s


class Clock:
    """Adds up what Syncline takes of the thread that trains, by what was called.

    What looks at a loss or a gradient waits on a GPU for what that was told before, which is the
    training's own time: of such calls it counts from where the GPU has done that until it is free
    to be told more. That it is then told nothing for a while is in `step_ratio`.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self._began: Instant | None = None
        self._hooks = 0.0
        self._waited: list[tuple[str, Instant, Instant, float]] = []
        """Of calls that wait for a GPU: from when and until when, but for so many seconds."""

    def now(self) -> float:
        """When all has been done that was told so far."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        for name, began, ended, less in self._waited:
            self.seconds[name] += began.until(ended) - less
        self._waited.clear()
        return time.perf_counter()

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        device = self._device if name in WAITS else "cpu"

        def timed(*args: Any, **how: Any) -> Any:
            began = Instant(device)
            try:
                return call(*args, **how)
            finally:
                self._add(name, began, Instant(device))

        return timed

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, stand between all hooks that are installed and what they call."""
        install = Hooks.install

        def watched(
            hooks: Hooks,
            optimizer: Optimizer,
            before_forward: Callable[[Iterable[int]], None],
            before_step: Callable[[], None],
            after_step: Callable[[], None],
        ) -> None:
            callbacks = (before_forward, before_step, after_step)
            install(hooks, optimizer, *(self.timed("hooks", one) for one in callbacks))

        setattr(Hooks, "install", watched)  # noqa: B010  (pyright would have its very parameters)
        try:
            yield
        finally:
            setattr(Hooks, "install", install)  # noqa: B010

    def before_care(self, loop: Trains) -> None:
        """Ahead of the hooks with which a replica takes care: its time begins with these."""
        self._register(loop, self._care_begins)

    def after_care(self, loop: Trains) -> None:
        """Behind them."""
        self._register(loop, self._care_ends)

    def _register(self, loop: Trains, act: Callable[..., None]) -> None:
        loop.model.register_forward_hook(act)
        for register in (
            loop.optimizer.register_step_pre_hook,
            loop.optimizer.register_step_post_hook,
        ):
            register(act)

    def _care_begins(self, what: nn.Module | Optimizer, *_: Any) -> None:
        # What it does behind a forward pass looks at no value.
        self._hooks, self._began = self.seconds["hooks"], Instant(self._device)

    def _care_ends(self, *_: Any) -> None:
        # The replica's other hooks lie between; they have had their time by themselves.
        assert self._began is not None
        within = self.seconds["hooks"] - self._hooks
        self._add("care", self._began, Instant(self._device), within)

    def _add(self, name: str, began: Instant, ended: Instant, less: float = 0.0) -> None:
        if began.is_of_gpu:
            self._waited.append((name, began, ended, less))
        else:
            self.seconds[name] += began.until(ended) - less
