"""What a fragment says to the control plane: its rounds, and what is out of the ordinary.

It finds the words, and sees that nothing is said twice. Never decides what becomes of a push.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from syncline_proto.exclusions import SAID_ONCE, Exclusions
from syncline_proto.reports import EventIn, RoundReport, Settled
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.merge import Outcome
from syncline_sync.core.record import Closing, Judgement, Kind, Saved, WholePush
from syncline_sync.core.untold import Untold
from syncline_sync.report import round_report, standing_report
from syncline_sync.report_queue import Told

COUNTS_AGAIN = (
    "The pushes of {} count again in the fragments of this sync service, after {:,} that did not."
)


@dataclass(frozen=True, slots=True)
class Telling:
    """What all fragments of a run say it through."""

    fragments: int
    """Of the whole run, whoever owns them."""
    tell: Callable[[Told], int]
    """What the control plane is to hear, in this order."""
    tell_once: Callable[[str, tuple[str, int]], None]
    """What every fragment says of the run, and of which change: the first to say it is heard."""
    settled: Callable[[], int]
    """Below which tickets all has been heard that was told."""
    exclusions: Exclusions
    """Of the run, as far as its fragments are here."""


class Voice:
    """One fragment's words to the control plane."""

    def __init__(
        self, number: int, name: str, telling: Telling, untold: Sequence[RoundReport]
    ) -> None:
        """``untold``: rounds that the control plane may not have heard of; they are told now."""
        self._number, self._name, self._telling = number, name, telling
        self._untold = Untold()
        for report in untold:
            self.round(report)

    def standing(self, saved: Saved) -> RoundReport:
        """Where the fragment stands now, for who may not have heard of it."""
        now_s, of_run = time.time(), self._telling.fragments
        return standing_report(self._number, self._name, saved, now_s, of_run)

    def stands(self, saved: Saved) -> None:
        """Tell where the fragment stands now."""
        self._telling.tell(self.standing(saved))

    def report(self, closing: Closing, outcome: Outcome | None) -> RoundReport:
        """A round as it is now, before its commit."""
        seconds, now_s = time.monotonic() - closing.opened_s, time.time()
        of_run = self._telling.fragments
        return round_report(self._number, self._name, closing, outcome, seconds, now_s, of_run)

    def kept(self, report: RoundReport) -> Sequence[str]:
        """What goes with the commit of this round, so that a kill leaves nothing unheard."""
        return self._untold.kept(self._telling.settled(), report.model_dump_json())

    def round(self, report: RoundReport) -> None:
        """Tell of a round that is committed."""
        self._untold.told(self._telling.tell(report), report.model_dump_json())

    def has_settled(self, membership: int) -> None:
        """Tell that nothing is open of lives that were gone as of this version of membership."""
        self._telling.tell(Settled(fragment=self._number, membership=membership))

    def judged(self, push: WholePush, judgement: Judgement) -> None:
        """Tell when a replica's pushes cease to count, and when all count again."""
        replica, exclusions = push.replica, self._telling.exclusions
        if judgement.verdict == pb.VERDICT_ANOMALOUS:
            if exclusions.excluded(replica, push.incarnation, self._number):
                why = f"{judgement.reason} {SAID_ONCE.capitalize()}."
                self.event("push.excluded", why, replica)
            return
        counts = push.kind is not Kind.PARAMETERS and judgement.verdict == pb.VERDICT_ACCEPTED
        if counts and (before := exclusions.counted(replica, self._number)):
            message = COUNTS_AGAIN.format(replica, before)
            self._telling.tell(EventIn(kind="push.counts", message=message, replica=replica))

    def of_run(self, sentences: Sequence[str], saved: Saved) -> None:
        """Tell what every fragment says of the run; ``saved`` says of which change it is."""
        for sentence in sentences:
            self._telling.tell_once(sentence, (saved.measured, saved.phase))

    def event(self, kind: str, sentence: str, replica: str | None = None) -> None:
        """Tell a sentence of this fragment."""
        message = f"fragment {self._name}: {sentence}"
        self._telling.tell(EventIn(kind=kind, message=message, replica=replica))
