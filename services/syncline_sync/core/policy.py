"""When an open round closes, and when to look at it again.

    everyone    whoever it expects is in
    push        it is one whose run waits for nobody
    quorum      so many are in, and those who are missing had their grace
    deadline    with the minimum, so long after its first timely push

The synchronous phase waits for everyone, whatever the quorum: its gradients cannot come late.

The grace is what overlap hides of a round anyway (one reading of Decoupled DiLoCo's rule, arXiv
2604.21428): between its push and the merge a replica trains on for tau inner steps of xi seconds,
and a round that takes no longer than that costs nobody time. Half of it, less what the quorum and
the publication take, is spent on waiting for those who are missing:

    grace = max(0, GRACE_SHARE * tau * xi - quorum - publication)            seconds

xi is measured: the time between the first pushes of two rounds, over the inner steps of the later.

Pure. Whose pushes are in is the round's; who is expected, the fragment's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from syncline_proto.settings import RunSettings
from syncline_sync.core.record import ClosedBy, Kind
from syncline_sync.core.round import Round

GRACE_SHARE = 0.5
"""The rest is for the way to the replicas, and for steps that take longer than the last ones."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a round needs, besides those whom it expects."""

    needed: int
    """Replicas without whose pushes it does not close at all."""
    wished: int
    """Replicas that it waits for until its deadline, though nobody knows who they are."""
    gone: Collection[str]
    """Those of them who came, and went: they count as if they were in."""
    alive: int = 0
    """Replicas that hold their lease."""


def wishes(
    settings: RunSettings, begins: bool, in_phase: int | None, gone: Collection[str], alive: int
) -> Wishes:
    """What the open round of a fragment needs.

    Only the very first round waits for anybody besides those whom it expects (``begins``; of a run
    that begins from a checkpoint, too): who starts together shall train together, and nobody is
    known by a push yet. ``in_phase`` are those who take part in a synchronous phase that is under
    way: nobody can join that, so those who are left need nobody else. Waiting for a joiner that
    itself waits for us would never end. ``alive`` hold their lease: without rounds that wait, so
    many are needed at all.
    """
    if in_phase is not None:
        return Wishes(max(1, min(settings.min_replicas, in_phase)), 0, gone, alive)
    return Wishes(settings.min_replicas, settings.replicas if begins else 0, gone, alive)


@dataclass(frozen=True, slots=True)
class Pace:
    """How the rounds of a fragment follow one another; None where nobody knows yet."""

    first_s: float | None = None
    """When the first timely push of the last round came."""
    step_s: float | None = None
    """Of an inner step of who pushed first in it."""
    publication_s: float = 0.0
    """What the last round took from its close until it was published."""

    def after(self, r: Round) -> Pace:
        """Once a round has closed."""
        first_s = r.timely_s[0] if r.timely_s else None
        return replace(self, first_s=first_s, step_s=self._step_s(r))

    def hidden_s(self, r: Round, settings: RunSettings) -> float:
        """How long replicas train on between a push and its merge; 0 if that is not known."""
        steps_s = [s for s in (self.step_s, self._step_s(r)) if s is not None]
        # The shorter of the last two: a pause is no step.
        return settings.overlap_steps * min(steps_s, default=0.0)

    def _step_s(self, r: Round) -> float | None:
        first = next(iter(r.arrived.values()), None)
        if self.first_s is None or first is None:
            return None
        return (r.timely_s[0] - self.first_s) / first.inner_steps


def due(
    r: Round, settings: RunSettings, wished: Wishes, pace: Pace, now_s: float, running: bool
) -> ClosedBy | None:
    """Whether a round of pushes may close now, and why. One of offers is the fragment's matter."""
    if r.window is not None:
        return ClosedBy.PUSH if r.entries and wished.alive >= wished.needed else None
    if len(r.replicas) < wished.needed:
        return None
    are_in = len(r.arrived.keys() | set(wished.gone)) >= wished.wished
    if are_in and r.expected <= r.arrived.keys():
        lost = r.lost or len(r.arrived) < wished.wished
        return ClosedBy.LOSS if lost else ClosedBy.EVERYONE
    if not running:
        return None
    grace_s = grace_ends_s(r, settings, pace) if are_in else None
    if grace_s is not None and now_s >= grace_s:
        return ClosedBy.QUORUM
    deadline_s = deadline_of(r, settings)
    return ClosedBy.DEADLINE if deadline_s is not None and now_s >= deadline_s else None


def look_at_s(r: Round, settings: RunSettings, pace: Pace, now_s: float) -> float | None:
    """When a round may close without anybody's doing, next after ``now_s``; None: never so far.

    Past its deadline and still short of the minimum, too: only an event can change that.
    """
    times = (grace_ends_s(r, settings, pace), deadline_of(r, settings))
    return min((at for at in times if at is not None and at > now_s), default=None)


def deadline_of(r: Round, settings: RunSettings) -> float | None:
    """When it closes with the minimum; None while nobody's timely push is in."""
    since_s = r.waits_from_s
    return None if since_s is None else since_s + settings.timeouts.round_deadline_s


def grace_ends_s(r: Round, settings: RunSettings, pace: Pace) -> float | None:
    """When it closes with its quorum; None before that is in, and where the round has none."""
    if settings.quorum is None or r.kind is not Kind.PSEUDO_GRADIENT:
        return None
    if (quorum_s := r.quorum_s(settings.quorum)) is None:
        return None
    if settings.grace_seconds is not None:
        return quorum_s + settings.grace_seconds
    spent_s = quorum_s - r.timely_s[0] + pace.publication_s
    return quorum_s + max(0.0, GRACE_SHARE * pace.hidden_s(r, settings) - spent_s)
