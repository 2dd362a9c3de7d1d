"""How many replicas a workload should have, and what that comes to.

Pure: what a run wants and who is there come in, a change or none goes out. Never starts or ends
anything, and never asks anybody to leave: who ends replicas gives them the time to drain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

FAILURES_MAX = 10
"""So many looks in a row may fail; then the scaler ends, for its supervisor to see."""

WAIT_S_MAX = 60.0
"""The longest wait between two looks that fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is known of a run."""

    run: str
    wanted: int | None
    """How many replicas it should have; None: nobody has said."""
    has_ended: bool = False
    alive: Collection[str] = ()
    """Names of its replicas that hold a lease and have not been asked to leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known of the workload that has the run's replicas."""

    replicas: int
    """How many it is to have, or has."""
    is_own: Callable[[str], bool]
    """Whether a replica of this name is one of its own."""
    starts_again: bool = False
    """Whether what has come to its end is started again, for ever."""
    who_leaves: str = ""
    """Which of its replicas leave first, and how long each is given, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The workload goes from so many replicas to so many."""

    run: str
    before: int
    after: int
    why: str


def change_of(demand: Demand, observed: Observed) -> Change | None:
    """Return what is to be done; None: nothing, or nobody has said how many there should be.

    Replicas from elsewhere count as well, and stay. A run that has ended needs nobody, and a
    workload that starts its replicas again would do so for ever; any other is left as it ended.
    """
    if demand.has_ended:
        if not observed.starts_again or not observed.replicas:
            return None
        why = f"{demand.run} has ended"
        return Change(run=demand.run, before=observed.replicas, after=0, why=why)
    if demand.wanted is None:
        return None
    elsewhere = sum(not observed.is_own(name) for name in demand.alive)
    after = max(0, demand.wanted - elsewhere)
    if after == observed.replicas:
        return None
    why = f"{demand.run} should have {demand.wanted}"
    if elsewhere:
        why += f", and {elsewhere} {'is' if elsewhere == 1 else 'are'} elsewhere"
    return Change(run=demand.run, before=observed.replicas, after=after, why=why)


def told(change: Change, workload: str, observed: Observed) -> str:
    """Return the sentence that tells of a change."""
    many = "1 replica" if change.after == 1 else f"{change.after} replicas"
    said = f"{workload} goes from {change.before} to {many}: {change.why}."
    leave = change.after < change.before and observed.who_leaves
    return f"{said} {observed.who_leaves}" if leave else said


def wait_s(every_s: float, failures: int) -> float:
    """Return how long to wait for the next look, after so many in a row that failed."""
    longest_s = max(every_s, WAIT_S_MAX)
    return min(every_s * 2.0 ** min(failures, 30), longest_s)
