"""What a replica counts while it trains, and the words for what it is doing.

Values only: the training thread counts, and what is told of it is for ``stats`` to say.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Phase = Literal["joining", "warm-up", "training", "waiting", "paused", "draining", "done"]
"""What a replica is doing, as heartbeats say it."""


@dataclass(slots=True)
class Tally:
    """What a replica has counted since it joined.

    Only the training thread writes. The heartbeat reads each number by itself, and a number that
    is older than its neighbour by one step is good enough for a report.
    """

    inner_step: int = 0
    tokens: int = 0
    """Of this replica, in finished inner steps."""
    since_sync: int = 0
    """Of these, those since the last push (or whose push came late)."""
    pushed: int = 0
    """Those in the pushes that are pending."""
    committed: int = 0
    """Tokens of the whole run, at the revision that was merged last."""
    of_round: int = 0
    """Those of the round that made that revision."""
    own_of_round: int = 0
    """Of these, this replica's."""
    growth: int = 0
    """What the last merge added to ``committed``."""
    exposed_s: float = 0.0
    hook_s: float = 0.0
    paused_s: float = 0.0
    """While the run was paused, or had too few replicas; no exposed time, and none of a hook."""
    rounds: int = 0
    barren: int = 0
    """Rounds in a row, up to the last one, in which nobody's push counted."""
    stale: int = 0
    aged: int = 0
    last_age: int = 0
    anomalous: int = 0


@contextmanager
def timed(tally: Tally) -> Iterator[None]:
    """Inside is a hook: count what it does besides waiting."""
    began, waited = time.perf_counter(), tally.exposed_s + tally.paused_s
    try:
        yield
    finally:
        waited = tally.exposed_s + tally.paused_s - waited
        tally.hook_s += time.perf_counter() - began - waited
