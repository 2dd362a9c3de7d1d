"""A replica without a control plane: it counts its steps and tokens, and does nothing else.

Has the face of a session, so that the same script runs alone.
"""

from __future__ import annotations

from threading import Event

import torch.distributed as dist
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from syncline.rounds import Phase, Tally
from syncline_proto.settings import RunSettings


class Alone:
    """What a replica counts while it is on its own: before it joins, or for good."""

    last_round = False
    drained = False
    unsynced = False
    revision = 0
    bytes_up = 0
    bytes_down = 0
    wall_s = 0.0

    def __init__(self, settings: RunSettings, optimizer: Optimizer, recall: Event) -> None:
        """``recall`` is set when somebody asks the replica to leave."""
        self.settings = settings
        self.tally = Tally()
        self.done = False
        self.phase: Phase = "training"
        self._optimizer, self._recall = optimizer, recall
        self._counted = 0
        self._handle: RemovableHandle | None = None
        together = dist.is_available() and dist.is_initialized()
        self._ranks = dist.get_world_size() if together else 1

    @property
    def run_tokens(self) -> int:
        return self.tally.tokens

    def start(self) -> None:
        self._handle = self._optimizer.register_step_post_hook(lambda *_: self._after_step())  # pyright: ignore[reportArgumentType]

    def count(self, tokens: int) -> None:
        self._counted += tokens * self._ranks

    def synchronize(self) -> None:
        """There is nobody to wait for."""

    def finish(self) -> None:
        """There is nothing to merge."""

    def leave(self) -> None:
        """There is nobody to tell."""

    def close(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _after_step(self) -> None:
        self.tally.inner_step += 1
        self.tally.tokens += self._counted
        self._counted = 0
        if self._recall.is_set():
            self.done = self.drained = True
            self.phase = "draining"
