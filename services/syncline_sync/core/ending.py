"""The end of the synchronous phase, over all fragments of a run: their offers count together.

Pure. Each fragment's parameters come in an offer of their own. Were each to become revision 1 at
once, replicas that all die between two offers would leave a run that is half at revision 1 and
half at 0, which nobody can go on with. So an offer waits until no fragment's is missing; if
everyone is gone before that, all of them are withdrawn and the phase starts again.

Invariant: once decided, it stays so.
"""

from __future__ import annotations


class Ending:
    """Which fragments' offers are missing; those that stand at revision 1 are not."""

    def __init__(self, fragments: int = 1) -> None:
        self._missing = set(range(fragments))

    @property
    def decided(self) -> bool:
        """Whether every fragment has its offer, so that all of them become revision 1."""
        return not self._missing

    def offered(self, fragment: int) -> None:
        self._missing.discard(fragment)

    def withdrawn(self, fragment: int) -> None:
        assert not self.decided, "what is decided stays"
        self._missing.add(fragment)
