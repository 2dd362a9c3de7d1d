"""Whether it is they who are silent, or we whom nobody reaches.

Pure. Who holds a lease, replica or sync service, is *overdue* once it has been silent for half of
that: two heartbeats are missing by then. If anybody at all has been heard after that, the network
was there, and it is gone; its lease ends as ever. If nobody has, and another is overdue in the same
silence, it is we who are cut off, as by a broken switch: then nobody pays for it. So the silence of
one alone, in a run of one replica, is its own.

Without a sync service there are no rounds, and nobody to fence a replica: if none held its lease
when the silence began, silence is silence. It also is once it has lasted for ``UNHEARD_S_MAX``:
where replicas and services have really died together, as on one machine, their leases end then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

UNHEARD_S_MAX = 600.0
"""Longer than a switch takes to start again; and for no longer is told as alive who is gone."""


class Voice(NamedTuple):
    """Of one that holds a lease; a service may have lost its own."""

    heard: float
    """When it last was."""
    length_s: float
    """Of its lease."""
    is_service: bool = False

    @property
    def overdue(self) -> float:
        """When it is, if it is not heard before."""
        return self.heard + self.length_s / 2


def unheard(voices: Sequence[Voice], now: float) -> list[int]:
    """Say, by their places, who is silent because it is we who are cut off."""
    heard = max((voice.heard for voice in voices), default=now)
    has_service = any(one.is_service and heard < one.heard + one.length_s for one in voices)
    if not has_service or now > heard + UNHEARD_S_MAX:
        return []
    silent = [at for at, voice in enumerate(voices) if heard <= voice.overdue < now]
    return silent if len(silent) > 1 else []
