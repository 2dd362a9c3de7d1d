"""A replica's part in a run, from its first pull to its leave: what happens at each hook.

Everything here runs on the training thread, in the same order on every rank; threads only carry
bytes (exchange) and the lease (heartbeat). Rank 0 decides, all ranks act on one decision.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from structlog.typing import FilteringBoundLogger
from torch.optim import Optimizer

from syncline.averaged import Averaged
from syncline.boundary import Boundary
from syncline.buffers import Buffers
from syncline.core.ramp import Ramp
from syncline.exchange import Exchange
from syncline.faults import plainly
from syncline.finite import leave_out
from syncline.hooks import Hooks
from syncline.pushes import Pushes
from syncline.ranks import Ranks
from syncline.rounds import Rounds
from syncline.synchronous import Synchronous, drop_gradients
from syncline.tally import Phase, Tally, timed
from syncline.traffic import Traffic
from syncline.waiting import RunOver, TookTooLong
from syncline_proto.errors import LeaseLost
from syncline_proto.settings import RunSettings


class Session:
    """One life of a replica. Built on all ranks once it has joined; ``start`` makes it live."""

    def __init__(
        self,
        *,
        exchange: Exchange,
        hooks: Hooks,
        averaged: Averaged,
        buffers: Buffers,
        rounds: Rounds,
        pushes: Pushes,
        synchronous: Synchronous,
        boundary: Boundary,
        optimizer: Optimizer,
        ranks: Ranks,
        traffic: Traffic,
        ramp: Ramp,
        log: FilteringBoundLogger,
    ) -> None:
        """``log`` is silent on all ranks but the first."""
        self.unsynced = False
        self.bears_loss = False
        """A lost lease is no error of a hook; steps change nothing until there is another life."""
        self.lost: LeaseLost | None = None
        """What a hook has borne so."""
        self._exchange, self._hooks, self._averaged = exchange, hooks, averaged
        self._buffers, self._rounds, self._pushes = buffers, rounds, pushes
        self._synchronous, self._boundary = synchronous, boundary
        self._optimizer, self._ranks = optimizer, ranks
        self._traffic, self._ramp, self._log = traffic, ramp, log
        self._synchronized = False
        """Nothing is left to wait for before this step's update."""
        self._missed = False
        """The synchronous phase went on without this step, so it is none."""
        self._skipped = False
        """The loop has left this step out, so its update is none."""
        self._under_way = False
        """A forward pass has used parameters that its backward still needs as they are."""
        self._over = False
        """The run has ended, as a forward pass learnt that must not change what it has used."""
        self._began = time.monotonic()

    @property
    def settings(self) -> RunSettings:
        return self._pushes.settings

    @property
    def done(self) -> bool:
        """This replica has nothing more to train."""
        return self._boundary.done

    @property
    def drained(self) -> bool:
        return self._boundary.drained

    @property
    def tally(self) -> Tally:
        return self._rounds.tally

    @property
    def wall_s(self) -> float:
        """Since this life has joined (before that: has begun to), without the run's pauses."""
        return time.monotonic() - self._began - self.tally.paused_s

    @property
    def phase(self) -> Phase:
        return self._boundary.phase

    @property
    def last_round(self) -> bool:
        return self._pushes.is_last

    @property
    def run_tokens(self) -> int:
        """Tokens of finished inner steps, with what the other replicas are taken to do."""
        tally = self.tally
        return tally.committed + self._pushes.of_everybody(tally.pushed + tally.since_sync)

    @property
    def revision(self) -> int:
        return self._rounds.revision

    @property
    def lr_factor(self) -> float:
        """Of the inner learning rate, for the step that comes."""
        return self._ramp.share(self.tally.inner_step)

    @property
    def bytes_up(self) -> int:
        """Of all ranks; the others' as of the last push, or ``finish``."""
        return self._traffic.up

    @property
    def bytes_down(self) -> int:
        return self._traffic.down

    def count(self, tokens: int) -> None:
        self._rounds.tokens.add(tokens)

    def start(self) -> None:
        """Offer revision 0 where nobody has, take the run's parameters, hook into the loop."""
        with self._at_hook():
            self._synchronous.begin()
            self._boundary.begin()
        # Joining is no training.
        self.tally.exposed_s = self.tally.hook_s = self.tally.paused_s = 0.0
        self._began = time.monotonic()
        self._hooks.install(self._optimizer, self.before_forward, self.before_step, self.after_step)

    @plainly
    def before_forward(self, fragments: Iterable[int]) -> None:
        """Merge the fragments that the forward pass is about to use.

        Fragments that it has used already stay as they are until backward is done: what ends the
        run is seen to before the optimizer's step. So it is where a part of the pass keeps no graph
        (checkpoints that re-enter), or another pass comes in between.
        """
        if torch.is_grad_enabled():
            # Gradients of another step come, even if the loop left out the update of the last.
            self._synchronized = self._missed = self._skipped = False
            self._under_way = True
        if self._rounds.are_pending and not (self.unsynced or self.lost):
            with self._at_hook():
                try:
                    self._rounds.merge_landed(fragments)
                except RunOver:
                    if not self._under_way:
                        raise
                    self._over = True
                    self._rounds.forget()
                if not self._under_way:
                    self._boundary.see_budget()

    @plainly
    def before_step(self) -> None:
        """Merge what must be merged before the optimizer moves, and average gradients."""
        self.synchronize()
        if self.done or self.lost:
            # The run's end was merged during this very step: its value stays as it is. Or there is
            # no run to step for.
            drop_gradients(self._optimizer)
        self._rounds.before_step()

    def synchronize(self) -> bool:
        """Merge what is due, and average gradients in the synchronous phase; once a step.

        Returns whether gradients were replaced, or dropped.
        """
        if self._synchronized or self.lost:
            return False
        averages = False
        with self._at_hook():
            self._see_over()
            self._averaged.see(self.tally.inner_step)
            # Where the loop has left out the last update of the phase.
            self._missed = not self._synchronous.offer_at_end()
            self._rounds.merge_landed()
            self._boundary.see_budget()
            if self._synchronous.is_on and not (self.done or self._missed):
                averages = True
                self._missed = not self._synchronous.average()
            if self._missed:
                drop_gradients(self._optimizer)
        self._synchronized = True
        return averages or self._missed

    @plainly
    def after_step(self) -> None:
        """Count the step, and do what rank 0 decides."""
        skipped, self._skipped, self._under_way = self._skipped, False, False
        if self.done or self.lost or skipped:
            return
        with self._at_hook():
            if not self._missed:
                self.tally.inner_step += 1
            self._rounds.heal()
            if self._synchronous.is_on:
                self._pushes.start_over()
            self._synchronized = self._missed = False
            steps, every = self.tally.inner_step, self.settings.sync_every
            # In the synchronous phase there is no push to look at them at.
            if steps <= 1 or (self._synchronous.is_on and not steps % every):
                self._buffers.check_unchanged()
            self._synchronous.offer_at_end()
            self._boundary.act()

    def skip(self, is_odd: bool) -> bool:
        """Leave this step out, between its backward pass and its update, if one rank finds it odd.

        Not where the synchronous phase has made its gradient everybody's, which is finite.
        Collective; whether it was done.
        """
        if self.done or self.lost or (self._synchronized and self._synchronous.is_on):
            return False
        if not self._ranks.sum(is_odd):
            return False
        leave_out(self._optimizer)
        self._rounds.tokens.drop_step()
        self._synchronized = self._skipped = True
        self._under_way = False
        return True

    def before_write(self) -> None:
        """The loop is about to write parameters itself."""
        self._rounds.before_step()

    def finish(self) -> None:
        """Merge everything that is pending."""
        if self.lost:
            return
        with self._at_hook():
            self._see_over()
            self._pushes.merge_all()
            self._traffic.sum(0)
            self._rounds.heal()
            self._boundary.see_budget()

    def go_back(self) -> bool:
        """Take the run's newest revision, and forget steps that no round has; whether it has."""
        if self.done or self.lost or self._synchronous.is_on:
            return False
        with self._at_hook():
            self._see_over()
            self._rounds.merge_all()
            self._boundary.see_budget()
            if not self.done:
                self._optimizer.state.clear()
                drop_gradients(self._optimizer)
                self._synchronous.enter()
                so = "its last steps are forgotten, and its optimizer begins anew"
                self._log.warning("replica.goes_back", revision=self.revision, so=so)
        return not (self.done or self.lost)

    def leave(self) -> None:
        """Bring in what was done since the last sync; wait for it as long as a round may take.

        Raises:
            LeaseLost: now, or before.
        """
        self.bears_loss = False
        if self.lost:
            raise self.lost
        if not self.done:
            with self._at_hook():
                self._see_over()
                self._boundary.bring_in()
        if not (self.done or self.lost):
            self._tell_budget()

    def _tell_budget(self) -> None:
        """A loop that ends by itself may have been meant to go on until its run has its budget."""
        budget, tokens = self.settings.token_budget, self.tally.committed
        if budget is not None and tokens < budget:
            so = f"{budget - tokens:,} tokens of the run's budget are left to others"
            self._log.info("replica.left", revision=self.revision, tokens=tokens, so=so)

    def _see_over(self) -> None:
        if self._over:
            self._over = False
            raise RunOver

    @contextmanager
    def _at_hook(self) -> Iterator[None]:
        """Time what a hook does besides waiting; end where the run has, or this replica leaves."""
        # An evaluation may merge under inference mode; what is kept must outlive it.
        with timed(self.tally), torch.inference_mode(False):
            try:
                yield
            except RunOver:
                self._boundary.follow_end()
            except TookTooLong:
                self._boundary.give_up()
            except LeaseLost as lost:
                if not self.bears_loss:
                    raise
                self.lost = lost
