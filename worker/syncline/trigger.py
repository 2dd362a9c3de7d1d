"""When a replica's groups of fragments are due: by its inner steps, or by its clock.

Runs on the training thread. Every rank counts, and rank 0's word is everybody's: what it says is
due, all push (``Helm.decide``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy

from syncline.core.cadence import Cadence
from syncline.core.timed import Instant, Timed
from syncline.rounds import Rounds
from syncline.tally import Tally
from syncline_proto.settings import RunSettings


class Trigger:
    """Counts one replica's pushes against what is due, as its run's settings have it."""

    def __init__(self, rounds: Rounds, settings: RunSettings) -> None:
        self._rounds = rounds
        self.groups = min(settings.fragment_groups, len(rounds.fragments))
        self._step_time = StepTime(rounds.tally)
        self._settings, self._share = settings, 1.0
        self._cadence = Cadence(self.groups, settings.sync_every)
        self._timed = self._by_time(settings)

    @property
    def is_by_time(self) -> bool:
        return self._timed is not None

    def due(self) -> int:
        """The number of groups that are to be pushed after this inner step."""
        if self._timed is None:
            return max(0, self._cadence.due(self._step))
        return self._due(self._timed)

    def due_by(self, settings: RunSettings) -> int:
        """The number that would be due now, had these counted since the last push.

        So an interval that somebody made far too long ends once that is mended, not at its end.
        """
        if settings.sync_seconds is None:
            begun = self._step - self._rounds.steps_held
            every = fewer(settings, self._share)
            cadence = Cadence(self.groups, every, begun) if self._timed else copy(self._cadence)
            cadence.adopt(every, self._step)
            return max(0, cadence.due(self._step))
        now_s, seconds, least = time.monotonic(), settings.sync_seconds, settings.min_round_steps
        timed = copy(self._timed) if self._timed else Timed(self.groups, seconds, least, now_s)
        timed.adopt(seconds, least, now_s)
        return self._due(timed)

    def pushed(self, groups: Sequence[Sequence[int]], due: int) -> None:
        """These were pushed, one after another; ``due`` of them for what was due."""
        if self._timed is None:
            self._cadence.pushed(due, self._step)
            return
        count, after_last = self._rounds.of_interval(groups)
        self._timed.pushed(min(due, count), self._seen(self._timed), after_last)

    def start_over(self) -> None:
        """Nothing is due of what was before."""
        self._cadence.start_over(self._step)
        if self._timed is not None:
            self._timed.start_over(time.monotonic(), self._rounds.newest)

    def adopt(self, settings: RunSettings) -> None:
        """Go by these from now on."""
        if self._timed is None or settings.sync_seconds is None:
            was_by_time, self._timed = self.is_by_time, self._by_time(settings)
            if was_by_time:
                self._cadence.start_over(self._step)
        else:
            now_s = time.monotonic()
            self._timed.adopt(settings.sync_seconds, settings.min_round_steps, now_s)
        self._settings = settings
        self._cadence.adopt(fewer(settings, self._share), self._step)

    def ask(self, share: float) -> None:
        """Of a round's inner steps make so many from now on: who is slow takes as long as others.

        By time that is so by itself.
        """
        if share != self._share:
            self._share = share
            self._cadence.adopt(fewer(self._settings, share), self._step)

    @property
    def _step(self) -> int:
        return self._rounds.tally.inner_step

    def _by_time(self, settings: RunSettings) -> Timed | None:
        if settings.sync_seconds is None:
            return None
        now_s = time.monotonic()
        timed = Timed(self.groups, settings.sync_seconds, settings.min_round_steps, now_s)
        timed.start_over(now_s, self._rounds.newest)
        return timed

    def _due(self, timed: Timed) -> int:
        return timed.to_push(self._seen(timed), self._rounds.before_last)

    def _seen(self, timed: Timed) -> Instant:
        """Where this replica stands, after ``timed`` has seen what was merged last."""
        if self._rounds.newest is not None:
            timed.see(self._rounds.newest)
        now_s = time.monotonic()
        return Instant(now_s, self._rounds.steps_held, self._step_time.seconds(now_s))


def fewer(settings: RunSettings, share: float) -> int:
    """The inner steps between two rounds of a replica that makes a share of them.

    A fragment has one round under way at a time, so there are no fewer than ``overlap_steps``.
    """
    return max(1, settings.overlap_steps, round(share * settings.sync_every))


class StepTime:
    """How long an inner step of this replica takes, without what it waits for.

    The shorter of the last two: what comes now and then beside a step, as a checkpoint or an
    evaluation does, is none; and the first ones, in which much is made, are soon forgotten.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._step, self._idle_s = tally.inner_step, 0.0
        self._since_s: float | None = None
        self._last_s: tuple[float, ...] = ()

    def seconds(self, now_s: float) -> float:
        """Of the next one; 0 while nobody knows. Ask after each step."""
        tally = self._tally
        idle_s, steps = tally.exposed_s + tally.paused_s, tally.inner_step - self._step
        if steps and self._since_s is not None:
            took_s = now_s - self._since_s - (idle_s - self._idle_s)
            self._last_s = (*self._last_s[-1:], max(0.0, took_s / steps))
        if steps or self._since_s is None:
            self._step, self._idle_s, self._since_s = tally.inner_step, idle_s, now_s
        return min(self._last_s) if len(self._last_s) > 1 else 0.0
