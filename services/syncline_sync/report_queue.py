"""What the sync service has to tell the control plane, until that has taken it.

Reports of a round go together, once no more of them come and no values move: to make, send and take
in one of them amid a round would cost the round. Bounded: of a run of which something was dropped
nothing counts as settled before it has been told anew where that stands. To tell that never pushes
out other reports: it waits until enough has been taken, and has room of its own. Knows nothing of
how they are sent.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from syncline_proto.reports import EventIn, RoundReport, Settled
from syncline_sync.lull import Lull

log = structlog.get_logger()

Told = RoundReport | EventIn | Settled
"""What a control plane is told of a run, in this order."""

FLUSH_S = 0.2
"""Reports wait until none has come for so long: those of a round go together, and behind it."""

FLUSH_MAX_S = 1.0
"""How long they wait at most, where they keep coming, or there is always something that moves."""

QUEUE_MAX = 20_000
"""Reports that may wait, beside ``PER_FRAGMENT`` for each fragment that there is."""

PER_FRAGMENT = 2
"""What is told anew of a fragment: where it stands, and what has settled."""

BATCH_MAX = 128


class ReportQueue:
    """What waits for the control plane; past the bound the oldest is dropped."""

    def __init__(self, fragments: Callable[[], int] = lambda: 0, lull: Lull | None = None) -> None:
        """``fragments``: how many there are, of all runs."""
        self._fragments, self._lull = fragments, lull or Lull()
        self._items: deque[tuple[str, Told]] = deque()
        self._filled = asyncio.Event()
        self._put_at_s = -math.inf
        self.dropped = 0
        """Since the control plane last took something; told by ``taken``."""
        self._holes: set[str] = set()
        """Runs of which something was dropped since then."""
        self._put = 0
        """How many have come; the last of them are those that wait."""
        self._upto = 0
        self.settled = 0
        """Tickets below it need not be told again: they were taken, refused, or dropped before."""

    def put(self, run: str, what: Told) -> int:
        """Let it wait behind the others; return its ticket, which ``settled`` passes one day."""
        while self._free <= 0:
            if not self.dropped:
                waiting = len(self._items)
                log.warning("too many reports wait; dropping the oldest", waiting=waiting)
            oldest, _ = self._items.popleft()
            self.lose(oldest, 1)
        self._items.append((run, _unsettled(what) if run in self._holes else what))
        self._put += 1
        self._put_at_s = time.monotonic()
        self._filled.set()
        return self._put - 1

    def put_back(self, run: str, batch: Sequence[Told]) -> None:
        """A batch that may not have been taken is the oldest once more, as far as there is room."""
        free = max(0, min(self._free, len(batch)))
        newest = batch[len(batch) - free :]
        self._items.extendleft((run, what) for what in reversed(newest))
        if free < len(batch):
            self.lose(run, len(batch) - free)
        self._upto = self._put - len(self._items)  # not theirs: they are still to be answered
        self._filled.set()

    def settle(self) -> None:
        """The last batch has been answered: whatever that was, it is not sent again."""
        self.settled = self._upto

    def taken(self) -> frozenset[str]:
        """The control plane has taken something: tell what it will never hear of.

        Return the runs that it concerns: where they stand, and what has settled, is to be told
        anew. No run is returned while so much waits that reports of others would be dropped for
        that, without end.
        """
        if self.dropped:
            log.warning("reports were dropped", count=self.dropped)
            self.dropped = 0
        if len(self._items) > QUEUE_MAX // 2:
            return frozenset()
        holes, self._holes = frozenset(self._holes), set()
        return holes

    @property
    def _quiet_at_s(self) -> float:
        """When nothing will have come or moved for long enough, if nothing more does."""
        return max(self._put_at_s + FLUSH_S, self._lull.begins_s)

    @property
    def _free(self) -> int:
        return QUEUE_MAX + PER_FRAGMENT * self._fragments() - len(self._items)

    def lose(self, run: str, count: int) -> None:
        """So many of a run's will not be told; what has settled is said after them, so not either.

        Where it stands is told anew once the control plane takes something (``taken``).
        """
        self.dropped += count
        if run not in self._holes:
            self._holes.add(run)
            self._items = deque((r, _unsettled(w) if r == run else w) for r, w in self._items)

    def __len__(self) -> int:
        return len(self._items)

    async def batch(self) -> tuple[str, list[Told]]:
        """Wait for something, then for its companions; take the oldest of one run."""
        if not self._items:
            self._filled.clear()
            await self._filled.wait()
        # Each time: to send one by one, amid a round, took a tenth of a busy loop.
        now_s = time.monotonic()
        latest_s = now_s + FLUSH_MAX_S
        while now_s < (until_s := min(self._quiet_at_s, latest_s)):
            await asyncio.sleep(until_s - now_s)
            now_s = time.monotonic()
        run = self._items[0][0]
        batch: list[Told] = []
        while self._items and self._items[0][0] == run and len(batch) < BATCH_MAX:
            batch.append(self._items.popleft()[1])
        self._upto = self._put - len(self._items)
        return run, batch


def _unsettled(what: Told) -> Told:
    """In its place, where it said what has settled, that nothing has."""
    return what.model_copy(update={"membership": 0}) if isinstance(what, Settled) else what
