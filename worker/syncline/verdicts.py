"""What became of a replica's pushes, round by round: counted, told, and when it is enough.

Runs on the training thread. Changes nothing in the model.
"""

from __future__ import annotations

from collections.abc import Sequence

from structlog.typing import FilteringBoundLogger

from syncline.core.agreement import Conclusion
from syncline.core.barren import BARREN_MAX, BARREN_TOLD, barren_after, diverged
from syncline.push import Outcome
from syncline.tally import Tally
from syncline_proto.exclusions import SAID_ONCE, Exclusions

OWN = "this one"
"""The only replica of which there is something to say."""


class Verdicts:
    """The verdicts on all fragments of one replica; the last one's count for the run."""

    def __init__(self, names: Sequence[str], tally: Tally, log: FilteringBoundLogger) -> None:
        """``names`` are the fragments'; ``log`` is silent on all ranks but the first."""
        self._names, self._tally, self._log = names, tally, log
        self._exclusions = Exclusions()

    def judged(self, fragment: int, outcome: Outcome) -> None:
        """A push is in a round, in time or with its age."""
        if outcome.age:
            self._tally.aged += 1
            self._tally.last_age = outcome.age
        if outcome.anomalous:
            self._tally.anomalous += 1
        self._tell(fragment, outcome)
        if self._is_last(fragment):
            self._tally.rounds += 1
            self._tally.pushed = 0

    def _tell(self, fragment: int, outcome: Outcome) -> None:
        """Say when exclusions begin, and when they are over."""
        if not outcome.anomalous:
            if before := self._exclusions.counted(OWN, fragment):
                self._log.info("push.counts", excluded=before)
        elif self._exclusions.excluded(OWN, 0, fragment):
            name, why = self._names[fragment], outcome.reason
            self._log.warning("push.excluded", fragment=name, why=why, so=SAID_ONCE)

    def barren(self, fragment: int, conclusion: Conclusion, outcome: Outcome) -> None:
        """See whether rounds go by and nothing counts; the last fragment's header says it to all.

        Raises:
            TrainingDiverged: so it was for ``BARREN_MAX`` rounds.
        """
        if not self._is_last(fragment):
            return
        assert outcome.pulled is not None
        verdicts = {push.verdict for push in outcome.pulled.header.contributions}
        self._tally.barren = barren_after(self._tally.barren, verdicts, self._tally.growth)
        why = outcome.reason if outcome.anomalous else ""
        if self._tally.barren >= BARREN_MAX:
            raise diverged(why, conclusion.non_finite)
        if self._tally.barren == BARREN_TOLD:
            so = f"after {BARREN_MAX} such rounds in a row the replica ends"
            self._log.warning("merge.nothing", rounds=BARREN_TOLD, why=why, so=so)

    def _is_last(self, fragment: int) -> bool:
        return fragment == len(self._names) - 1
