"""Whose pushes do not count at present: what a log says once, and not of each fragment and round.

Pure. A replica is excluded from its first push that does not count until the newest push of each of
its fragments does. What became of every push is in the rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SAID_ONCE = "no more is said of it until all its pushes count again; the rounds tell of each"


@dataclass(slots=True)
class _Spell:
    incarnation: int
    pushes: int = 0
    fragments: set[int] = field(default_factory=set[int])
    """Whose newest push does not count."""


class Exclusions:
    """Of one run, by replica; as many as have come."""

    def __init__(self) -> None:
        self._spells: dict[str, _Spell] = {}

    def excluded(self, replica: str, incarnation: int, fragment: int) -> bool:
        """A push does not count; whether it is the first in a while, and worth a word."""
        spell = self._spells.get(replica)
        is_first = spell is None or spell.incarnation != incarnation
        if spell is None or is_first:
            spell = self._spells[replica] = _Spell(incarnation)
        spell.pushes += 1
        spell.fragments.add(fragment)
        return is_first

    def counted(self, replica: str, fragment: int) -> int:
        """A push counts; where that makes all count again, how many before did not; else 0."""
        spell = self._spells.get(replica)
        if spell is None:
            return 0
        spell.fragments.discard(fragment)
        if spell.fragments:
            return 0
        del self._spells[replica]
        return spell.pushes
