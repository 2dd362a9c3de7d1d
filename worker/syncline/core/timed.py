"""When fragments are pushed by time: once in each interval, wherever a replica's steps end.

A-EDiT (arXiv 2412.07210): in an interval who is faster makes more inner steps. It begins with the
publication of the last fragment's newest revision, which is one instant for all replicas: so all
have one grid, joiners too, and who was held up once is not behind for ever. The groups are spread
evenly over it, as the cadence spreads them over steps.

What is due at the end of an interval is pushed after the last step that ends before it, not after
the first beyond it: otherwise everybody would wait for the rest of a step of the slowest, where so
each waits for less than a step of its own.

Pure. Time comes in as seconds of any clock that never goes back, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

PROLONGED_MAX = 4.0
"""An interval that is to bring a least total of steps lasts at most so many times ``sync_seconds``:
a run that has lost most of its replicas, or that will never bring so many, goes on all the same."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A revision of the last fragment, as one replica has heard of it."""

    revision: int
    at_s: float
    """On that replica's own clock."""
    others: int = 0
    """Inner steps that other replicas brought to it."""


@dataclass(frozen=True, slots=True)
class Instant:
    """Where a replica stands between two inner steps."""

    now_s: float
    steps: int = 0
    """Inner steps of the last fragment that were not pushed."""
    step_s: float = 0.0
    """How long the next step will take; 0 while nobody knows."""


class Timed:
    """How many groups are due, by time: in each interval each once."""

    def __init__(self, groups: int, sync_seconds: float, min_steps: int, now_s: float) -> None:
        """``min_steps``: an interval goes on until all replicas are taken to have made so many."""
        self._groups, self._seconds, self._min_steps = groups, sync_seconds, min_steps
        self._newest: Publication | None = None
        self._rate = 0.0
        """Inner steps that the others make in a second, as far as we know."""
        self._start_s, self._taken = now_s, 0
        self._since_last = 0
        """Groups pushed after the last one: they are of the interval that its revision begins."""

    def start_over(self, now_s: float, newest: Publication | None) -> None:
        """Begin where nothing is due: what others have pushed since ``newest`` is not ours."""
        self._newest, self._rate, self._since_last = None, 0.0, 0
        self._start_s, self._taken = now_s, 0
        if newest is not None:
            self.see(newest)
            self._taken = self._slots(Instant(now_s))

    def see(self, newest: Publication) -> None:
        """The revision that was merged last: if it is another one, an interval begins with it."""
        if newest == self._newest:
            return
        self._rate = newest.others / self._lasted_s(newest)
        self._newest, self._start_s, self._taken = newest, newest.at_s, self._since_last
        self._since_last = 0

    def adopt(self, sync_seconds: float, min_steps: int, now_s: float) -> None:
        """Take another interval, counted from now if something is due or was just taken."""
        self._min_steps = min_steps
        if sync_seconds != self._seconds:
            passed_s = self._start_s + self._taken * self._seconds / self._groups
            self._seconds = sync_seconds
            self._start_s, self._taken = min(passed_s, now_s), 0

    def due(self, at: Instant) -> int:
        """The number of groups that are to be pushed now."""
        return min(self._slots(at) - self._taken, self._groups)

    def pushed(self, groups: int, at: Instant, after_last: int | None = None) -> None:
        """So many of those due have been; the others stay due, but not twice.

        ``after_last``: how many of them after the last group; None: that was not among them.
        """
        self._taken = max(self._taken + groups, self._slots(at) - self._groups)
        self._since_last = self._since_last + groups if after_last is None else after_last

    def _slots(self, at: Instant) -> int:
        passed_s = max(0.0, at.now_s - self._start_s) + at.step_s
        share = passed_s / self._seconds
        if self._min_steps:
            steps = (at.steps + self._rate * passed_s) / self._min_steps
            share = max(min(share, steps), share / PROLONGED_MAX)
        return int(share * self._groups)

    def _lasted_s(self, newest: Publication) -> float:
        """How long the replicas took for a round, by the last two that we have heard of.

        Who has heard of one only, takes it to have been as long as is asked for. None is longer
        than it may be: the rest was a pause, or nobody was there.
        """
        before, longest_s = self._newest, PROLONGED_MAX * self._seconds
        if before is None or newest.revision <= before.revision or newest.at_s <= before.at_s:
            return self._seconds
        passed_s = newest.at_s - before.at_s
        return min(passed_s / (newest.revision - before.revision), longest_s)
