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
from syncline.buffers import Buffers
from syncline.core.plan import Act
from syncline.core.ramp import Ramp
from syncline.ending import RunEnd
from syncline.entry import Entry
from syncline.exchange import Exchange
from syncline.faults import plainly
from syncline.helm import Helm
from syncline.hooks import Hooks
from syncline.join import Joined
from syncline.leaving import Leaving
from syncline.pushes import Pushes
from syncline.ranks import Ranks
from syncline.rounds import Rounds
from syncline.tally import Phase, Tally, timed
from syncline.waiting import RunOver, TookTooLong, Waiting
from syncline.warmup import WarmUp

PAUSE_SLICE_S = 0.2
"""Between two looks at whether a paused run goes on."""


class Session:
    """One life of a replica. Built on all ranks once it has joined; ``start`` makes it live."""

    def __init__(
        self,
        joined: Joined,
        ranks: Ranks,
        exchange: Exchange,
        helm: Helm,
        hooks: Hooks,
        averaged: Averaged,
        buffers: Buffers,
        rounds: Rounds,
        pushes: Pushes,
        leaving: Leaving,
        waiting: Waiting,
        entry: Entry,
        run_end: RunEnd,
        optimizer: Optimizer,
        ramp: Ramp,
        log: FilteringBoundLogger,
    ) -> None:
        """``log`` is silent on all ranks but the first."""
        self.settings = joined.settings
        self._phase: Phase = "joining"
        self.done = False
        """This replica has nothing more to train."""
        self.drained = False
        self.unsynced = False
        self._settings_version = joined.registration.run.settings_version
        self._ranks, self._exchange, self._helm, self._hooks = ranks, exchange, helm, hooks
        self._rounds, self._pushes, self._waiting = rounds, pushes, waiting
        self._leaving, self._buffers = leaving, buffers
        self._averaged = averaged
        self._ramp = ramp
        self._entry, self._run_end, self._optimizer, self._log = entry, run_end, optimizer, log
        self._warm_up: WarmUp | None = None
        self._synchronized = False
        """Nothing is left to wait for before this step's update."""
        self._missed = False
        """The synchronous phase went on without this step, so it is none."""
        self._over = False
        """The run has ended, as a forward pass learnt that must not change what it has used."""
        self._counted = 0
        """Tokens of this rank since the last inner step."""
        self._began = time.monotonic()

    @property
    def tally(self) -> Tally:
        return self._rounds.tally

    @property
    def wall_s(self) -> float:
        """Since this life has joined (before that: has begun to), without the run's pauses."""
        return time.monotonic() - self._began - self.tally.paused_s

    @property
    def phase(self) -> Phase:
        return "waiting" if self._waiting.is_on and not self.done else self._phase

    @property
    def last_round(self) -> bool:
        return self._pushes.is_last

    @property
    def run_tokens(self) -> int:
        """Tokens of finished inner steps, taking the other replicas to do as much as this one."""
        tally = self.tally
        return tally.committed + (tally.pushed + tally.since_sync) * self.settings.replicas

    @property
    def revision(self) -> int:
        return self._rounds.revision

    @property
    def lr_factor(self) -> float:
        """Of the inner learning rate, for the step that comes."""
        return self._ramp.share(self.tally.inner_step)

    @property
    def bytes_up(self) -> int:
        return self._exchange.bytes_up

    @property
    def bytes_down(self) -> int:
        return self._exchange.bytes_down

    def count(self, tokens: int) -> None:
        self._counted += tokens
        self._rounds.tokens.add(tokens)

    def start(self) -> None:
        """Offer revision 0 where nobody has, take the run's parameters, hook into the loop."""
        with self._at_hook():
            self._entry.offer()
            self._enter()
            self._helm.joining = False
            self._act()
        # Joining is no training.
        self.tally.exposed_s = self.tally.hook_s = self.tally.paused_s = 0.0
        self._began = time.monotonic()
        self._hooks.install(self._optimizer, self.before_forward, self.before_step, self.after_step)

    @plainly
    def before_forward(self, fragments: Iterable[int]) -> None:
        """Merge the fragments that the forward pass is about to use.

        Fragments that it has used already stay as they are until backward is done: what ends the
        run is seen to before the optimizer's step.
        """
        training = torch.is_grad_enabled()
        if training:
            # Gradients of another step come, even if the loop left out the update of the last.
            self._synchronized = self._missed = False
        if self._rounds.are_pending and not self.unsynced:
            with self._at_hook():
                try:
                    self._rounds.merge_landed(fragments)
                except RunOver:
                    if not training:
                        raise
                    self._over = True
                    self._rounds.forget()
                if not training:
                    self._see_budget()

    @plainly
    def before_step(self) -> None:
        """Merge what must be merged before the optimizer moves, and average gradients."""
        self.synchronize()
        if self.done:
            # The run's end was merged during this very step: its value stays as it is.
            self._drop_gradients()
        self._rounds.before_step()

    def synchronize(self) -> None:
        """Merge what is due, and average gradients in the synchronous phase; once a step."""
        if self._synchronized:
            return
        with self._at_hook():
            self._see_over()
            self._averaged.see(self.tally.inner_step)
            self._offer_at_end()
            self._rounds.merge_landed()
            self._see_budget()
            if self._warm_up is not None and not self.done:
                self._average_gradients(self._warm_up)
        self._synchronized = True

    @plainly
    def after_step(self) -> None:
        """Count the step, and do what rank 0 decides."""
        if self.done:
            return
        with self._at_hook():
            if not self._missed:
                self.tally.inner_step += 1
            self._rounds.heal()
            if self._warm_up is not None:
                self._pushes.start_over()
            self._synchronized = self._missed = False
            steps, every = self.tally.inner_step, self.settings.sync_every
            # In the synchronous phase there is no push to look at them at.
            if steps <= 1 or (self._warm_up is not None and not steps % every):
                self._buffers.check_unchanged()
            self._offer_at_end()
            self._act()

    def finish(self) -> None:
        """Merge everything that is pending."""
        with self._at_hook():
            self._see_over()
            self._pushes.merge_all()
            self._rounds.heal()
            self._see_budget()

    def go_back(self) -> bool:
        """Take the run's newest revision, and forget steps that no round has; whether it has."""
        if self.done or self._warm_up is not None:
            return False
        with self._at_hook():
            self._see_over()
            self._rounds.merge_all()
            self._see_budget()
            if not self.done:
                self._optimizer.state.clear()
                self._drop_gradients()
                self._counted = 0
                self._enter()
                so = "its last steps are forgotten, and its optimizer begins anew"
                self._log.warning("replica.goes_back", revision=self.revision, so=so)
        return not self.done

    def leave(self) -> None:
        """Bring in what was done since the last sync; wait for it as long as a round may take."""
        if not self.done:
            with self._at_hook():
                self._see_over()
                self._bring_in()

    def _bring_in(self) -> None:
        if self._warm_up is None:  # else its gradients are in
            self._leaving.bring_in(self._sees_end)

    def _sees_end(self) -> bool:
        self._see_budget()
        return self.done

    def _left(self) -> None:
        """It was asked to leave, and has."""
        self._phase = "draining"
        self.drained = self.done = True
        self._helm.say_drained()

    def _enter(self) -> None:
        """Take the parameters from which to train, and with them the phase that the run is in."""
        self._warm_up = self._entry.take()
        self._pushes.start_over()
        self._rounds.start_over()
        self._rounds.tokens.drop()
        # What was committed before we came says nothing of how fast it grows.
        self.tally.since_sync = self.tally.growth = 0
        if self.revision and not self._optimizer.state:
            self._ramp.begin(self.tally.inner_step, self.settings.sync_every)

    def _offer_at_end(self) -> None:
        """Offer the parameters with which the synchronous phase ends, once it is over."""
        if self._warm_up is not None and self._warm_up.is_over:
            self._buffers.check_unchanged()
            self._rounds.begin(self._warm_up.offers(self.tally.inner_step))
            self._warm_up = None

    def _average_gradients(self, warm_up: WarmUp) -> None:
        tokens = self._ranks.sum(self._counted)
        self._averaged.settle()
        committed = warm_up.average(self.tally.inner_step, tokens)
        self._counted = 0
        self._rounds.tokens.drop()
        if committed is not None:
            self.tally.tokens += tokens
            self.tally.committed = committed
            return
        self._missed = True
        why = "the synchronous phase went on without this replica"
        self._log.warning("warm_up.missed", why=why)
        self._drop_gradients()
        if not warm_up.is_over:  # otherwise it missed no more than the last mean
            self._optimizer.state.clear()
        self._enter()

    def _act(self) -> None:
        """Let rank 0 decide what follows, and do it; comes back when the run is not paused."""
        while True:
            act, tokens = self._helm.decide(
                self._pushes.steps_since,
                self._pushes.is_due,
                self._warm_up is not None,
                self._settings_version,
                self._counted,
            )
            self._counted = 0
            self.tally.since_sync += tokens
            self.tally.tokens += tokens
            # What was pushed before or at this boundary waits for a round that cannot close.
            self._exchange.pauses.set(bool(act & Act.PAUSE))
            if act & Act.STOP:
                raise self._waiting.lost("its heartbeat was refused")
            if act & Act.END:
                raise RunOver
            if act & Act.SYNC:
                self._rounds.merge_landed()
                self._see_budget()
                if self.done:
                    return
                self._pushes.push(everything=bool(act & Act.LEAVE))
            if act & Act.ADOPT:
                adopted = self._helm.new_settings()
                self.settings, self._settings_version = adopted.settings, adopted.version
                self._pushes.adopt(self.settings)
            if act & Act.LEAVE:
                self._phase = "draining"
                self._bring_in()
                self._left()
                return
            if not act & Act.PAUSE:
                self._phase = "training" if self._warm_up is None else "warm-up"
                return
            self._phase = "paused"
            began = time.perf_counter()
            time.sleep(PAUSE_SLICE_S)
            self.tally.paused_s += time.perf_counter() - began

    def _see_over(self) -> None:
        if self._over:
            self._over = False
            raise RunOver

    def _see_budget(self) -> None:
        """End where the merged revisions hold the run's whole token budget.

        The last fragment says so; the others' last rounds are under way then, or over.
        """
        if self._rounds.last_is_pending or self.done:
            return
        self._pushes.is_last = False
        if self._warm_up is None and self._rounds.budget_is_committed:
            self._rounds.merge_all()
            if self._run_end.is_reached:
                self.done, self._phase = True, "done"
                self._run_end.finish()

    def _drop_gradients(self) -> None:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @contextmanager
    def _at_hook(self) -> Iterator[None]:
        """Time what a hook does besides waiting; end where the run has, or this replica leaves."""
        # An evaluation may merge under inference mode; what is kept must outlive it.
        with timed(self.tally), torch.inference_mode(False):
            try:
                yield
            except RunOver:
                self.done, self._phase = True, "done"
                self._run_end.follow()
            except TookTooLong:  # only who is asked to leave gives up a wait
                if self._warm_up is None:
                    self._leaving.give_up()
                self._left()
