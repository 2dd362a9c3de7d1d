"""A replica without a control plane: it counts, sees that its ranks train one model, and ends.

Has the face of a session, so that the same script runs alone.
"""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from syncline.averaged import Averaged
from syncline.batches import check_counted
from syncline.faults import plainly
from syncline.finite import leave_out
from syncline.ranks import Ranks, check_together
from syncline.recall import Recall
from syncline.tally import Phase, Tally
from syncline.voice import own_rank, voice
from syncline_proto.settings import RunSettings


class Alone:
    """What a replica counts while it is on its own: before it joins, or for good."""

    last_round = False
    drained = False
    unsynced = False
    bears_loss = False
    revision = 0
    lr_factor = 1.0
    bytes_up = 0
    bytes_down = 0
    wall_s = 0.0

    def __init__(
        self, settings: RunSettings, model: nn.Module, optimizer: Optimizer, recall: Recall
    ) -> None:
        """``recall`` is set when somebody asks the replica to leave."""
        self.settings = settings
        self.tally = Tally()
        self.done = False
        self.phase: Phase = "training"
        self._model, self._optimizer, self._recall = model, optimizer, recall
        self._counted = 0
        """Tokens of this rank since the last inner step."""
        self._skipped = False
        """The loop has left this step out, so its update is none."""
        self._handles: list[RemovableHandle] = []
        self._ranks: Ranks | None = None
        self._averaged: Averaged | None = None

    @property
    def run_tokens(self) -> int:
        return self.tally.tokens

    def start(self) -> None:
        """Say that it is on its own, on rank 0, and count from here on; on all ranks.

        Raises:
            ConfigError: its ranks have not met.
        """
        check_together()
        why = "it trains alone: no control plane is configured (SYNCLINE_CONTROL)"
        idle = ", ".join(_without_meaning(self.settings))
        so = {"so": f"settings that mean nothing here: {idle}"} if idle else {}
        voice(own_rank()).info("replica.alone", why=why, **so)
        ranks = self._ranks = Ranks()
        self._averaged = Averaged(self._model, ranks)
        self._handles = [
            self._optimizer.register_step_pre_hook(lambda *_: self._before_step()),  # pyright: ignore[reportArgumentType]
            self._optimizer.register_step_post_hook(lambda *_: self._after_step(ranks)),  # pyright: ignore[reportArgumentType]
        ]

    def count(self, tokens: int) -> None:
        self._counted += tokens
        self._skipped = False  # it is of another step

    def skip(self, is_odd: bool) -> bool:
        """Leave this step out, if one rank finds it odd; as ``Session.skip``."""
        if self._ranks is None or self.done or not self._ranks.sum(is_odd):
            return False
        leave_out(self._optimizer)
        self._counted, self._skipped = 0, True
        return True

    def before_write(self) -> None:
        """Nothing here is copied beside the loop's work."""

    def synchronize(self) -> bool:
        """See that the ranks train one model; there is nobody else to wait for.

        False: gradients stay as they are.

        Raises:
            ConfigError: nothing averages their gradients.
        """
        if self._averaged is not None:
            self._averaged.see(self.tally.inner_step)
        return False

    def finish(self) -> None:
        """There is nothing to merge."""

    def go_back(self) -> bool:
        """There is nothing to go back to."""
        return False

    def leave(self) -> None:
        """There is nobody to tell."""

    def close(self, failed: bool) -> None:
        """``failed``: the other ranks may be elsewhere, so nothing is done in step with them."""
        for handle in self._handles:
            handle.remove()
        if self._ranks is not None and not failed:
            self._ranks.close()

    @plainly
    def _before_step(self) -> None:
        self.synchronize()

    @plainly
    def _after_step(self, ranks: Ranks) -> None:
        """Count, and end where the budget is reached or one rank was asked to leave.

        As in a run the step's tokens are rank 0's times the ranks, so that all end at one step.

        Raises:
            ConfigError: no token was counted until where a run has its first push.
        """
        if self._skipped:
            self._skipped = False
            return
        told = ranks.gather([self._recall.is_set(), self._counted * ranks.count])
        is_asked = self._recall.hear(bool(asked) for asked, _ in told)
        tokens = told[0][1]
        self.tally.inner_step += 1
        self.tally.tokens += tokens
        self._counted = 0
        budget = self.settings.token_budget
        if is_asked:
            self.done = self.drained = True
            self.phase = "draining"
        elif budget is not None and self.tally.tokens >= budget:
            self.done = True
            self.phase = "done"
        elif self.tally.inner_step >= self.settings.sync_every:
            check_counted(self.tally, 0, budget)


def _without_meaning(settings: RunSettings) -> list[str]:
    """The settings that somebody gave and that say something of a run only."""
    bare = RunSettings(strategy=settings.strategy)
    by_strategy = bare.model_fields_set - {"strategy"}  # nobody gave them
    return [
        name
        for name in RunSettings.model_fields
        if name != "token_budget"
        and (
            name in settings.model_fields_set - by_strategy
            or getattr(settings, name) != getattr(bare, name)
        )
    ]
