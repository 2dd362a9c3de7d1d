"""When a replica pushes which fragments, and whether that may be the last time.

Runs on the training thread, in the same order on every rank. What a push does is for ``rounds``.
"""

from __future__ import annotations

from syncline.buffers import Buffers
from syncline.core.plan import of_everybody, reaches_budget
from syncline.rounds import Rounds
from syncline.trigger import Trigger
from syncline_proto.settings import RunSettings


class Pushes:
    """One replica's pushes."""

    def __init__(self, rounds: Rounds, buffers: Buffers, settings: RunSettings) -> None:
        self.is_last = False
        """What was just pushed is expected to reach the token budget."""
        self.settings = settings
        """Those of the next push."""
        self._rounds, self._buffers = rounds, buffers
        self._trigger = Trigger(rounds, settings)
        self._last_step = self._left = 0
        """After which step any fragment was pushed; how many groups were due then, and not."""

    @property
    def steps_since(self) -> int:
        """Inner steps since any fragment was pushed."""
        return self._step - self._last_step

    @property
    def due(self) -> int:
        """The number of groups that are to be pushed now, as this rank has it."""
        return self._trigger.due()

    def due_by(self, settings: RunSettings) -> int:
        """As ``due``, had these settings counted since the last push."""
        return self._trigger.due_by(settings)

    @property
    def are_by_time(self) -> bool:
        return self._trigger.is_by_time

    @property
    def must_be(self) -> bool:
        """Whether a push is to be made whatever is due: the last came late, or all is to end."""
        return self._owed > 0 or self._rounds.goal is not None

    @property
    def _owed(self) -> int:
        """Groups that came late, and are pushed at once.

        By time they are not: who has the grid of all others comes in time for the next interval,
        and would only wait for its end.
        """
        return 0 if self._trigger.is_by_time else self._rounds.owed

    @property
    def _step(self) -> int:
        return self._rounds.tally.inner_step

    def of_everybody(self, own: int) -> int:
        """How many tokens all replicas are taken to have had while this one had ``own``."""
        tally, replicas = self._rounds.tally, self.settings.replicas
        if self._trigger.is_by_time and not self.settings.asynchronous:  # else a round is one push
            return of_everybody(own, replicas, tally.of_round, tally.own_of_round)
        return of_everybody(own, replicas)

    def start_over(self) -> None:
        """Nothing is to be pushed of what was before."""
        self._trigger.start_over()
        self._last_step, self._left = self._step, 0

    def merge_all(self) -> None:
        """Merge everything that is pending; what came late is pushed again, until it is in."""
        self._rounds.merge_all()
        while self._rounds.owed and self._rounds.goal is None:
            self._push(self._left, self._left + self._rounds.owed)
            self._rounds.merge_all()

    def adopt(self, settings: RunSettings) -> None:
        """Go by these from the next push on."""
        self.settings = settings
        self._trigger.adopt(settings)
        self._rounds.adopt(settings)

    def ask(self, share: float) -> None:
        """Make this share of a round's inner steps from now on."""
        self._trigger.ask(share)

    def make_way(self, due: int) -> None:
        """See that so many groups can be pushed: by time a round may be under way for too long.

        By inner steps none is, since ``overlap_steps`` are less than an interval.
        """
        if self._trigger.is_by_time:
            self._rounds.make_way(due)

    def push(self, due: int, everything: bool = False) -> None:
        """Push the progress of the groups that are due; if told, of all.

        What came late is pushed beside them, and takes no turn of theirs. Where the run ends all
        are pushed, too, but none before what it comes after: others wait for that.
        """
        groups = due + self._owed if self._rounds.goal is None else self._trigger.groups
        self._push(due, None if everything else groups)

    def _push(self, due: int, groups: int | None) -> None:
        """Push so many groups, or all, ``due`` of them in their turn."""
        self._buffers.check_unchanged()
        pushed = self._rounds.push(self.settings.codec.up, groups)
        in_turn = len(pushed) if groups is None else min(len(pushed), due)
        self._trigger.pushed(pushed, in_turn)
        self._last_step, self._left = self._step, max(0, due - in_turn)
        if any(self._rounds.fragments[-1] in group for group in pushed):
            tally = self._rounds.tally
            self.is_last = reaches_budget(
                committed=tally.committed,
                pushed=self.of_everybody(tally.pushed),
                last_growth=tally.growth,
                budget=self.settings.token_budget,
            )
