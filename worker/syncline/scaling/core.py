"""How many replicas a workload should have, and what that comes to.

Pure: what a run wants and who is there come in, a step or none goes out. Never starts or ends
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
class Wish:
    """What is known of a run."""

    run: str
    wanted: int | None
    """How many replicas it should have; None: nobody has said."""
    has_ended: bool = False
    alive: Collection[str] = ()
    """Names of its replicas that hold a lease and have not been asked to leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class There:
    """What is known of the workload that has the run's replicas."""

    replicas: int
    """How many it is to have, or has."""
    is_own: Callable[[str], bool]
    """Whether a replica of this name is one of its own."""
    starts_again: bool = False
    """Whether what has come to its end is started again, for ever."""
    highest_first: str = ""
    """Which of its replicas leave first, and how long each is given, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The workload goes from so many replicas to so many."""

    run: str
    before: int
    after: int
    why: str


def step(wish: Wish, there: There) -> Step | None:
    """Return what is to be done; None: nothing, or nobody has said how many there should be.

    Replicas from elsewhere count as well, and stay. A run that has ended needs nobody, and a
    workload that starts its replicas again would do so for ever; any other is left as it ended.
    """
    if wish.has_ended:
        if not there.starts_again or not there.replicas:
            return None
        why = f"{wish.run} has ended"
        return Step(run=wish.run, before=there.replicas, after=0, why=why)
    if wish.wanted is None:
        return None
    elsewhere = sum(not there.is_own(name) for name in wish.alive)
    after = max(0, wish.wanted - elsewhere)
    if after == there.replicas:
        return None
    why = f"{wish.run} should have {wish.wanted}"
    if elsewhere:
        why += f", and {elsewhere} {'is' if elsewhere == 1 else 'are'} elsewhere"
    return Step(run=wish.run, before=there.replicas, after=after, why=why)


def told(step: Step, workload: str, there: There) -> str:
    """Return the sentence that tells of a step."""
    many = "1 replica" if step.after == 1 else f"{step.after} replicas"
    said = f"{workload} goes from {step.before} to {many}: {step.why}."
    leave = step.after < step.before and there.highest_first
    return f"{said} {there.highest_first}" if leave else said


def wait_s(every_s: float, failures: int) -> float:
    """Return how long to wait for the next look, after so many in a row that failed."""
    longest_s = max(every_s, WAIT_S_MAX)
    return min(every_s * 2.0 ** min(failures, 30), longest_s)
