"""When a replica pushes which fragments, and whether that may be the last time.

Runs on the training thread, in the same order on every rank. What a push does is for ``rounds``.
"""

from __future__ import annotations

from syncline.buffers import Buffers
from syncline.core.cadence import Cadence
from syncline.core.plan import reaches_budget
from syncline.rounds import Rounds
from syncline_proto.settings import RunSettings


class Pushes:
    """One replica's pushes, by its inner steps."""

    def __init__(self, rounds: Rounds, buffers: Buffers, settings: RunSettings) -> None:
        self.is_last = False
        """What was just pushed is expected to reach the token budget."""
        self.settings = settings
        """Those of the next push."""
        self._rounds, self._buffers = rounds, buffers
        self._groups = min(settings.fragment_groups, len(rounds.fragments))
        self._cadence = Cadence(self._groups, settings.sync_every)
        self._last_step = 0

    @property
    def steps_since(self) -> int:
        """Inner steps since any fragment was pushed."""
        return self._step - self._last_step

    @property
    def is_due(self) -> bool:
        """Whether a push is to be made now: it is time, the last came late, or all is to end."""
        rounds = self._rounds
        return self._cadence.due(self._step) > 0 or rounds.owed > 0 or rounds.goal is not None

    @property
    def _step(self) -> int:
        return self._rounds.tally.inner_step

    def start_over(self) -> None:
        """Nothing is to be pushed of what was before."""
        self._cadence.start_over(self._step)
        self._last_step = self._step

    def merge_all(self) -> None:
        """Merge everything that is pending; what came late is pushed again, until it is in."""
        self._rounds.merge_all()
        while self._rounds.owed and self._rounds.goal is None:
            self.push()
            self._rounds.merge_all()

    def adopt(self, settings: RunSettings) -> None:
        """Go by these from the next push on."""
        self.settings = settings
        self._cadence.adopt(settings.sync_every, self._step)
        self._rounds.eager.adopt(settings.outer)

    def push(self, everything: bool = False) -> None:
        """Push the progress of the groups that are due; if told, or where the run ends, of all.

        What came late is pushed beside them, and takes no turn of theirs.
        """
        self._buffers.check_unchanged()
        everything = everything or self._rounds.goal is not None
        due = max(0, self._cadence.due(self._step))
        groups = None if everything else due + self._rounds.owed
        pushed = self._rounds.push(self.settings.codec.up, groups)
        self._cadence.pushed(len(pushed) if everything else min(len(pushed), due), self._step)
        self._last_step = self._step
        if any(self._rounds.fragments[-1] in group for group in pushed):
            tally = self._rounds.tally
            self.is_last = reaches_budget(
                committed=tally.committed,
                pushed=tally.pushed,
                replicas=self.settings.replicas,
                last_growth=tally.growth,
                budget=self.settings.token_budget,
            )
