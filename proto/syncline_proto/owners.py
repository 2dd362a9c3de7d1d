"""Which sync service owns which fragment, where several share a run.

Pure, and a function of the layout and of the number of services alone: every service finds the
same answer, after every restart, without a word to the others. So the rule is part of the contract:
to change it would give stored fragments to services that do not have them.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass

from syncline_proto.layout import Layout

SHARDS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Seat:
    """One service's place, ``index``, among the ``shards`` that own a run's fragments together."""

    index: int = 0
    shards: int = 1

    def __str__(self) -> str:
        return f"{self.index} of {self.shards}"

    def owned(self, layout: Layout) -> tuple[int, ...]:
        """The fragments of the service in this seat, ascending; none where services are many."""
        whose = owners([fragment.numel for fragment in layout.fragments], self.shards)
        return tuple(number for number, owner in enumerate(whose) if owner == self.index)


def owners(sizes: Sequence[int], shards: int) -> tuple[int, ...]:
    """The owner (0 to ``shards`` - 1) of each fragment, given their sizes in elements.

    The largest first, each to whoever has the least so far; equals by number. So nobody has more
    than 4/3 - 1/(3 shards) times what the best cut would give its largest share (Graham, "Bounds on
    multiprocessing timing anomalies", 1969: LPT).
    """
    least = [(0, index) for index in range(shards)]  # a heap: it is sorted
    found = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        load, index = least[0]
        found[number] = index
        heapq.heapreplace(least, (load + sizes[number], index))
    return tuple(found)


def ordinal(host: str) -> int | None:
    """The number at the end of a StatefulSet's host name (``sync-2``, whatever its domain)."""
    match = re.search(r"-([0-9]{1,9})$", host.partition(".")[0])
    return int(match[1]) if match else None
