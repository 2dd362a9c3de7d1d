"""The end of the synchronous phase, over all fragments of a run: their offers count together.

Pure. Each fragment's parameters come in an offer of their own. Were each to become revision 1 at
once, replicas that all die between two offers would leave a run that is half at revision 1 and
half at 0, which nobody can go on with. So an offer is stored, and waits until no fragment's is
missing; if everyone is gone before that, all of them are given up and the phase starts again,
under the next number.

Where several services share the run it is a commit in two phases, with the control plane to decide:
a service votes once its own offers are stored, and from then on gives none up by itself. The
phase has ended when all have voted; when one says instead that everyone is gone, the next
begins. A service acts on what was decided alone, whatever it knows itself.

A control plane whose database is new, or an old copy, may know less than a service. It hears again
that a phase has ended; and where it names an older one than ours, that ours is lost, unless we have
all our offers of it: nobody knows who else is in it, and with others behind it would never end.

Invariants:
    - once a phase has ended, it stays so, and none follows it;
    - who has voted for a phase has every offer of it stored, until it has ended or the next began.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vote:
    """What the control plane is to hear: that ``phase`` may end here, or that it is lost."""

    phase: int
    offered: bool


class Ending:
    """Which of a service's own fragments lack their offer; those at revision 1 do not."""

    def __init__(
        self, fragments: Iterable[int] = (0,), *, is_alone: bool = True, phase: int = 0
    ) -> None:
        """``is_alone``: no other service has fragments of this run. ``phase``: as stored."""
        self.phase = phase
        self._all = frozenset(fragments)
        self._missing = set(self._all)
        self._is_alone, self._has_ended, self._is_lost = is_alone, False, False
        self._heard, self._is_known = phase, False
        """The phase of the word heard last; whether that says, too, that ours has ended."""

    @property
    def decided(self) -> bool:
        """Whether every fragment, of all services, has its offer: they become revision 1."""
        return not self._missing if self._is_alone else self._has_ended

    @property
    def vote(self) -> Vote | None:
        """What is still to be decided by others, and what we say to it."""
        if self._is_alone or self._is_known:
            return None
        if not self._missing:
            return Vote(self.phase, offered=True)
        is_lost = self._is_lost or self._heard < self.phase
        return Vote(self.phase, offered=False) if is_lost and not self._has_ended else None

    def offered(self, fragment: int, phase: int) -> None:
        """A fragment's offer is stored, or it stands at revision 1 already."""
        if phase == self.phase:
            self._missing.discard(fragment)

    def lost(self, phase: int) -> None:
        """Everyone in the phase is gone, as a fragment sees it."""
        if phase != self.phase or self.decided or not self._missing:
            return
        if self._is_alone:
            self._begin(phase + 1)
        else:
            self._is_lost = True

    def hear(self, phase: int, has_ended: bool) -> None:
        """Take the control plane's word; an old one says nothing new."""
        if self._is_alone:
            return
        if phase > self.phase and not self._has_ended:
            self._begin(phase)
        self._heard, self._is_known = phase, has_ended and phase == self.phase
        self._has_ended = self._has_ended or self._is_known

    def _begin(self, phase: int) -> None:
        self.phase, self._missing, self._is_lost = phase, set(self._all), False
