"""Who may take part, and until when: grant, renew, review, release.

Pure: callers hand in ``now``, seconds on one clock, and ``late_s``, how long the caller itself
was held up. A lease is held while ``now < until``; at ``until`` it is lost. Nobody loses a lease
because we were away: whoever judges late by more than half a lease extends instead. Who was kicked
stays out under that name, and hears the same sentence whatever it asks for: a supervisor that
starts it again must not undo what an operator did.

A replica's name is given again and again, its *incarnation* never: a life that comes back late
finds a larger number in its place and is refused, however healthy it feels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from syncline_proto.errors import LeaseLost, RunConflict
from syncline_proto.rest import ReplicaState

REVIEW_S_MIN, REVIEW_S_MAX = 0.2, 1.0
"""Leases are reviewed ten times in the shortest of them, within these bounds."""

HELD = frozenset({ReplicaState.ALIVE, ReplicaState.DRAINING})
"""A draining replica is still a member: what it pushes counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The newest life of one replica.

    Invariants:
        - ``incarnation`` counts from 1 and only grows;
        - a lease that is not held is never held again: only a new incarnation is.
    """

    incarnation: int
    state: ReplicaState
    until: float
    """When it ends, or when it ended."""
    length_s: float

    @property
    def held(self) -> bool:
        return self.state in HELD

    def left_s(self, now: float) -> float:
        """Seconds until it runs out; 0 when it is not held."""
        return max(0.0, self.until - now) if self.held else 0.0


def grant(older: Lease | None, now: float, length_s: float) -> Lease:
    """Return the lease of a new incarnation; ``older`` is fenced by its being there.

    Raises:
        LeaseLost: the replica was kicked.
    """
    if older:
        _refuse_if_kicked(older)
    incarnation = older.incarnation + 1 if older else 1
    return Lease(
        incarnation=incarnation, state=ReplicaState.ALIVE, until=now + length_s, length_s=length_s
    )


def renew(lease: Lease, incarnation: int, now: float, late_s: float = 0.0) -> Lease:
    """Return the lease with its end moved to a full length from ``now``.

    Raises:
        LeaseLost: another incarnation holds it, it has ended, or it ran out before ``now``.
    """
    _refuse_if_kicked(lease)
    if incarnation < lease.incarnation:
        raise LeaseLost(
            "Another process has joined under the same replica's name and goes on in its place "
            f"(incarnation {lease.incarnation}, this one is {incarnation}); where both are to "
            "train, give each a name of its own (--replica, SYNCLINE_REPLICA, Replica(name=...))."
        )
    if incarnation > lease.incarnation:
        raise LeaseLost(f"Incarnation {incarnation} was never given; register the replica again.")
    if not lease.held:
        raise LeaseLost(f"{_ENDED[lease.state]}; start the replica again to go on.")
    if not review(lease, now, late_s).held:
        raise LeaseLost(f"{_ENDED[ReplicaState.LOST]}; start the replica again to go on.")
    return replace(lease, until=now + lease.length_s)


def review(lease: Lease, now: float, late_s: float = 0.0) -> Lease:
    """Return the lease as it stands at ``now``: the same, lost, extended or cut.

    It is extended by a full length if we come late by more than half of one, since heartbeats
    may have waited with us. It never ends later than a full length from ``now``, so a clock that
    was set back keeps nobody alive.
    """
    if not lease.held:
        return lease
    if late_s > lease.length_s / 2:
        return replace(lease, until=now + lease.length_s)
    if now >= lease.until:
        return replace(lease, state=ReplicaState.LOST)
    return replace(lease, until=min(lease.until, now + lease.length_s))


def release(lease: Lease, incarnation: int, now: float) -> Lease:
    """Return the lease as left; unchanged if this incarnation does not hold it (any more).

    Raises:
        LeaseLost: the replica was kicked.
    """
    _refuse_if_kicked(lease)
    if lease.held and lease.incarnation == incarnation:
        return replace(lease, state=ReplicaState.LEFT, until=now)
    return lease


def drain(lease: Lease) -> Lease:
    """Return the lease as draining.

    Raises:
        RunConflict: it is not held, so there is nobody to drain.
        LeaseLost: the replica was kicked.
    """
    _refuse_if_kicked(lease)
    if not lease.held:
        raise RunConflict(f"{_ENDED[lease.state]}; there is nothing to drain.")
    return replace(lease, state=ReplicaState.DRAINING)


def kick(lease: Lease, now: float) -> Lease:
    """Return the lease as taken away; unchanged if it is not held."""
    return replace(lease, state=ReplicaState.KICKED, until=now) if lease.held else lease


def review_every_s(lengths_s: Iterable[float]) -> float:
    """Return how long to wait between two reviews of leases of these lengths."""
    shortest = min(lengths_s, default=10 * REVIEW_S_MAX)
    return min(max(shortest / 10, REVIEW_S_MIN), REVIEW_S_MAX)


def _refuse_if_kicked(lease: Lease) -> None:
    """
    Raises:
        LeaseLost: the replica was kicked.
    """
    if lease.state is ReplicaState.KICKED:
        raise LeaseLost(
            "An operator removed this replica from the run; only another name may join it."
        )


_ENDED = {
    ReplicaState.LEFT: "The replica has left",
    ReplicaState.LOST: "The lease ran out because no heartbeat came in time",
}
