"""Whether a replica is in the synchronous phase: how it comes into it, and out again.

Entering the run it comes into the phase, or finds it over. It is out once it has made its offer, or
when the phase went on without it, and then it enters anew. What a step of the phase does is for
``warmup``. Runs on the training thread, in the same order on every rank.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger
from torch.optim import Optimizer

from syncline.averaged import Averaged
from syncline.buffers import Buffers
from syncline.core.ramp import Ramp
from syncline.entry import Entry
from syncline.pushes import Pushes
from syncline.rounds import Rounds
from syncline.warmup import WarmUp
from syncline_proto.errors import ConfigError

SCALED = (
    "The synchronous phase averages gradients, and those of this step are still scaled: call "
    "scaler.unscale_(optimizer) before scaler.step(optimizer)."
)


class Synchronous:
    """One replica's synchronous phase, if its run has one and it is in time for it."""

    def __init__(
        self,
        entry: Entry,
        averaged: Averaged,
        buffers: Buffers,
        rounds: Rounds,
        pushes: Pushes,
        optimizer: Optimizer,
        ramp: Ramp,
        log: FilteringBoundLogger,
    ) -> None:
        """``log`` is silent on all ranks but the first."""
        self._entry, self._averaged, self._buffers = entry, averaged, buffers
        self._rounds, self._pushes = rounds, pushes
        self._optimizer, self._ramp, self._log = optimizer, ramp, log
        self._warm_up: WarmUp | None = None

    @property
    def is_on(self) -> bool:
        return self._warm_up is not None

    def begin(self) -> None:
        """Offer revision 0 where nobody has, and enter.

        Raises:
            RunConflict, RunOver, SynclineError: as ``Entry`` does.
        """
        self._entry.offer()
        self.enter()

    def enter(self) -> None:
        """Take the parameters from which to train, and with them the phase that the run is in."""
        self._warm_up = self._entry.take()
        self._pushes.start_over()
        self._rounds.start_over()
        self._rounds.tokens.drop()
        tally = self._rounds.tally
        # What was committed before we came says nothing of how fast it grows.
        tally.since_sync = tally.growth = 0
        if self._rounds.revision and not self._optimizer.state:
            self._ramp.begin(tally.inner_step, self._pushes.settings.sync_every)

    def average(self) -> bool:
        """Replace the gradients by the mean over all replicas.

        Returns False if the phase went on without this replica: it has entered anew, so that this
        step is none, and its gradients mean nothing.

        Raises:
            ConfigError: they are scaled still, as a GradScaler leaves them to a fused optimizer;
                or one is sparse.
        """
        warm_up, tally = self._warm_up, self._rounds.tally
        assert warm_up is not None
        if getattr(self._optimizer, "grad_scale", None) is not None:
            raise ConfigError(SCALED)
        self._averaged.check_dense()
        tokens = self._rounds.tokens.sum_step()
        self._averaged.settle()
        mean = warm_up.average(tally.inner_step, tokens, self._rounds.unnamed())
        self._rounds.tokens.drop()
        if mean is not None:
            tally.tokens += tokens
            tally.committed, named = mean
            self._rounds.named(named)
            return True
        self._enter_anew(was_over=warm_up.is_over)
        return False

    def offer_at_end(self) -> bool:
        """Offer the parameters with which the phase ends, once it is over, and take revision 1.

        Returns False if nobody took them, since the phase went on without this replica: it has
        entered anew, and gradients of before mean nothing.

        Raises:
            RunOver, TookTooLong, SynclineError: as ``Waiting.settled`` does.
        """
        warm_up = self._warm_up
        if warm_up is None or not warm_up.is_over:
            return True
        self._buffers.check_unchanged()
        with warm_up.offered(self._rounds.tally.inner_step) as futures:
            taken = self._rounds.take(futures)
        if taken:
            self._warm_up = None
            self._pushes.start_over()
            self._rounds.start_over()
        else:
            self._enter_anew(was_over=True)
        return taken

    def _enter_anew(self, was_over: bool) -> None:
        """The phase went on without this replica, which had (``was_over``) made all its steps."""
        why = "the synchronous phase went on, or started again, without this replica"
        self._log.warning("warm_up.missed", why=why)
        self._rounds.name_everywhere()  # a phase that starts again has forgotten what is where
        if not was_over:  # otherwise it missed no more than the last mean
            self._optimizer.state.clear()
        self.enter()
        if self.is_on:  # which begins with none
            self._optimizer.state.clear()


def drop_gradients(optimizer: Optimizer) -> None:
    """Leave none, so that the optimizer's step changes nothing."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
