"""When a replica synchronises, waits and ends: the decision after each inner step.

Pure. Rank 0 decides from what it has counted and what the control plane last said; all ranks act
on the same decision.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntFlag


class Act(IntFlag):
    """What follows an inner step; several may."""

    NOTHING = 0
    SYNC = 1
    """Push the progress since the last sync."""
    LEAVE = 2
    """Merge what was pushed, then end: this replica drains."""
    PAUSE = 4
    """Make no further step for now."""
    END = 8
    """The run has ended."""
    STOP = 16
    """The lease is lost."""
    ADOPT = 32
    """Rank 0 has new settings to share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What rank 0 last heard, from the control plane or from its own process."""

    drain: bool = False
    paused: bool = False
    ended: bool = False
    lost: bool = False
    new_settings: bool = False


def after_step(steps_since_sync: int, is_due: bool, warming: bool, heard: Heard) -> Act:
    """Decide what follows an inner step.

    New settings are taken only between two rounds: at a boundary, while nothing was done yet, or
    after the first step, before whose update the pending round was merged and news may have come.
    A replica that drains during the synchronous phase has nothing to push: its gradients are in.

    Args:
        steps_since_sync: inner steps since the last push; at least 1 after a step, 0 before any.
        is_due: whether fragments are to be pushed now (``cadence``).
        warming: whether this replica takes part in the synchronous phase.
        heard: what is known of the run.
    """
    if heard.lost:
        return Act.STOP
    if heard.ended:
        return Act.END
    act = Act.NOTHING
    if heard.drain:
        act |= Act.LEAVE
    if not warming and steps_since_sync and (heard.drain or is_due):
        act |= Act.SYNC
    if heard.paused and not heard.drain:
        act |= Act.PAUSE
    if heard.new_settings and (act & Act.SYNC or steps_since_sync <= 1):
        act |= Act.ADOPT
    return act


def in_step(revisions: Sequence[int], ready: Collection[int]) -> list[int]:
    """The fragments of ``ready`` that stand at the oldest revision among them, in order.

    Fragments are independent, so a replica that comes while others push may be in time for some
    of them and late for the rest, whose newer revision it then holds. If it pushed all of them at
    its next boundary, it would be a round ahead of the others in a part of the model for ever, and
    replicas would wait for each other in turn. So a fragment that is ahead sits one boundary out,
    and keeps its progress.

    Args:
        revisions: of the anchors, by fragment.
        ready: numbers of the fragments that hold progress and are not pending.
    """
    oldest = min((revisions[fragment] for fragment in ready), default=0)
    return [fragment for fragment in sorted(ready) if revisions[fragment] == oldest]


def of_everybody(own: int, replicas: int, of_round: int = 0, own_of_round: int = 0) -> int:
    """How many tokens all replicas have had while this one had ``own``.

    By inner steps everybody is taken to do as much; by time, to be as fast as in the last round,
    in which all had ``of_round``. Without a part in one nobody knows.
    """
    return own * of_round // own_of_round if own_of_round else own * replicas


def reaches_budget(committed: int, pushed: int, last_growth: int, budget: int | None) -> bool:
    """Whether the round just pushed to is expected to commit the run's last tokens.

    That is with what everybody is taken to push, or with as much as the last round brought.
    """
    return budget is not None and committed + max(pushed, last_growth) >= budget
