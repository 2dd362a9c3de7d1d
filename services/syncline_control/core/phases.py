"""The end of a run's synchronous phase, where several sync services share the run: who decides.

Pure. A service says that its fragments' offers are all stored, or that everyone in the phase is
gone, and goes on saying so; whichever makes a decision first, counts. The phase ends when all of
them have their offers, for good; otherwise the next one begins, and what is said of an older one
says nothing. Of a newer one a service hears from us alone: who names one knows more than a database
that is new, or an old copy, and it is taken over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NUMBER_MAX = 1 << 53
"""No phase has a larger number, which every reader of JSON keeps; who names one is passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """``offered`` are the services (by index) that have all their offers of this one."""

    number: int = 0
    offered: frozenset[int] = frozenset()
    has_ended: bool = False


def after(phase: Phase, index: int, shards: int, number: int, offered: bool) -> Phase:
    """Return the phase after what service ``index`` of ``shards`` says of phase ``number``."""
    if phase.has_ended or not phase.number <= number < NUMBER_MAX:
        return phase
    if number > phase.number:
        phase = Phase(number=number)
    if not offered:
        return Phase(number=number + 1)
    those = phase.offered | {index}
    return replace(phase, offered=those, has_ended=len(those) >= shards)
