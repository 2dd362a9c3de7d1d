"""In how many pieces a replica may hold leased data. Pure.

Who reads pushes what it has read, some hundred pieces with each push at most, and then they are
done. Who only asks would make spans without end, and each of them is looked at whenever a life
ends: so who holds many pieces waits until some are done or given back.
"""

from __future__ import annotations

from syncline_proto.ranges import RANGES_MAX

HELD_MAX = 4 * RANGES_MAX
"""Pieces that one replica holds: those of four pushes."""

SPANS_MAX = 4_096
"""Of a run whose data is in more pieces than these, each replica holds fewer."""

HELD_LEAST = 16
"""So many then: who has little is given some, whatever others do."""


def pieces(held: int, spans: int) -> int:
    """How many more to give to who holds so many, of a run whose data is in so many spans."""
    most = HELD_MAX if spans < SPANS_MAX else HELD_LEAST
    return max(0, min(RANGES_MAX, most - held))
