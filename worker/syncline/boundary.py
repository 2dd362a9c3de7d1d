"""Between two inner steps: rank 0 decides what follows, and all ranks do it.

A replica goes on, waits out a pause, leaves or ends here, so here is known which of these it does.
Runs on the training thread, in the same order on every rank.
"""

from __future__ import annotations

import time

from syncline.core.plan import Act
from syncline.ending import RunEnd
from syncline.exchange import Exchange
from syncline.helm import Helm
from syncline.leaving import Leaving
from syncline.pushes import Pushes
from syncline.rounds import Rounds
from syncline.synchronous import Synchronous
from syncline.tally import Phase
from syncline.waiting import RunOver, Waiting

PAUSE_SLICE_S = 0.2
"""Between two looks at whether a paused run goes on."""


class Boundary:
    """One replica's boundaries, from when it has entered its run to its last."""

    def __init__(
        self,
        *,
        version: int,
        exchange: Exchange,
        helm: Helm,
        waiting: Waiting,
        rounds: Rounds,
        pushes: Pushes,
        synchronous: Synchronous,
        leaving: Leaving,
        run_end: RunEnd,
    ) -> None:
        """``version`` is that of the settings with which the replica joined."""
        self.done = False
        """This replica has nothing more to train."""
        self.drained = False
        self._phase: Phase = "joining"
        self._version = version
        self._exchange, self._helm, self._waiting = exchange, helm, waiting
        self._rounds, self._pushes, self._synchronous = rounds, pushes, synchronous
        self._leaving, self._run_end = leaving, run_end

    @property
    def phase(self) -> Phase:
        if self._phase == "joining" or self.done or not self._waiting.is_on:
            return self._phase
        return "waiting"

    def begin(self) -> None:
        """The first one, before any step."""
        self._helm.joining = False
        self.act()

    def act(self) -> None:
        """Let rank 0 decide what follows, and do it; comes back when the run is not paused.

        Raises:
            LeaseLost: the heartbeat was refused.
            RunOver, TookTooLong, SynclineError: as ``Rounds.merge`` does.
        """
        tally = self._rounds.tally
        while True:
            self._pushes.ask(self._helm.step_share)
            act, due, tokens = self._helm.decide(
                self._pushes.steps_since,
                self._due(),
                self._pushes.must_be,
                self._synchronous.is_on,
                self._version,
                self._rounds.tokens.take_step(),
            )
            tally.since_sync += tokens
            tally.tokens += tokens
            # What was pushed before or at this boundary waits for a round that cannot close.
            self._exchange.pauses.set(bool(act & Act.PAUSE))
            if act & Act.STOP:
                raise self._waiting.lost("its heartbeat was refused")
            if act & Act.END:
                raise RunOver
            if act & Act.SYNC:
                began_with = self._rounds.newest
                self._rounds.merge_landed()
                self._pushes.make_way(due)
                self.see_budget()
                if self.done:
                    return
                if self._pushes.are_by_time and self._rounds.newest is not began_with:
                    # What was merged has begun another interval, of which less may be due.
                    due = min(due, self._helm.agree(self._pushes.due))
                if due or self._pushes.must_be or act & Act.LEAVE:
                    self._pushes.push(due, everything=bool(act & Act.LEAVE))
                self.see_budget()  # where the end is known, this merges what was just pushed
                if self.done:
                    return
            if act & Act.ADOPT:
                adopted = self._helm.new_settings(self._pushes.settings)
                self._version = adopted.version
                self._pushes.adopt(adopted.settings)
            if act & Act.LEAVE:
                self._phase = "draining"
                self.bring_in()
                self._left()
                return
            if not act & Act.PAUSE:
                self._phase = "warm-up" if self._synchronous.is_on else "training"
                return
            self._phase = "paused"
            began = time.perf_counter()
            time.sleep(PAUSE_SLICE_S)
            tally.paused_s += time.perf_counter() - began

    def _due(self) -> int:
        """The number of groups to push now: by the settings that count, or by those that come."""
        due = self._pushes.due
        if not due and (news := self._helm.news(self._version)) is not None:
            due = self._pushes.due_by(news)
        return due

    def see_budget(self) -> None:
        """End where the merged revisions are those with which the run does.

        Once the last fragment has told which those are, the last rounds are under way, or this
        replica pushes to them at its next boundary.
        """
        if self.done:
            return
        if not self._rounds.last_is_pending:
            self._pushes.is_last = False
        if not self._synchronous.is_on and self._rounds.goal is not None:
            self._rounds.merge_all()
            if self._rounds.is_at_goal:
                self.done, self._phase, self._pushes.is_last = True, "done", False
                self._run_end.finish()

    def bring_in(self) -> None:
        """Bring in what was done since the last sync, before leaving a run that goes on."""
        if not self._synchronous.is_on:  # else its gradients are in
            self._leaving.bring_in(self._is_at_end)

    def follow_end(self) -> None:
        """The run has ended elsewhere."""
        self.done, self._phase = True, "done"
        self._run_end.follow()

    def give_up(self) -> None:
        """Leave without what is waited for: only who is asked to leave gives up a wait."""
        if not self._synchronous.is_on:
            self._leaving.give_up()
        self._left()

    def _is_at_end(self) -> bool:
        self.see_budget()
        return self.done

    def _left(self) -> None:
        """It was asked to leave, and has."""
        self._phase = "draining"
        self.drained = self.done = True
        self._helm.say_drained()
