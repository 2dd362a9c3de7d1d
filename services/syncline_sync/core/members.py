"""Whom a fragment may wait for: who holds its lease, who takes part, and who came in vain.

Pure. A replica has come once it has opened the run; one that is refused then holds a lease, and has
not. It takes part from its first push that was accepted, or came too late and goes on like
everybody's, until it loses its lease; in the synchronous phase, until it misses a step. A round
expects those who take part as it opens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import Kind
from syncline_sync.core.round import Round


class Members:
    """Lives by replica: name -> incarnation."""

    def __init__(self, taking_part: Mapping[str, int]) -> None:
        """``taking_part`` as it was stored."""
        self.alive: Mapping[str, int] = {}
        self.taking_part: dict[str, int] = dict(taking_part)
        self.gone: set[str] = set()
        """Who came before the first round closed, and has lost its lease or left before it."""

    def adopt(self, alive: Mapping[str, int], came: Collection[str], *, begins: bool) -> None:
        """These hold their leases now, and those ``came``, at any time; ``begins``: no round has
        closed since the run began.
        """
        if begins:
            self.gone = set(came) - alive.keys()
        self.alive = dict(alive)
        self.taking_part = self._of_alive(self.taking_part)

    def closed(self, r: Round) -> None:
        """A round ends: who is in it takes part."""
        if r.kind is Kind.PARAMETERS:
            return
        if r.kind is Kind.GRADIENT:
            # Who missed one step may have left the phase; otherwise it is heard of again.
            for replica in r.expected - r.arrived.keys():
                self.taking_part.pop(replica, None)
        # Who has lost its lease since it pushed must not be waited for in the next round.
        accepted = [c for c in r.contributions() if c.verdict == pb.VERDICT_ACCEPTED]
        self.taking_part |= self._of_alive({c.replica: c.incarnation for c in accepted})

    def inside(self, r: Round | None) -> dict[str, int]:
        """Who takes part, or is alive and has pushed in time in the open round."""
        arrived = r.arrived.values() if r else ()
        accepted = [c for c in arrived if c.verdict == pb.VERDICT_ACCEPTED]
        return self.taking_part | self._of_alive({c.replica: c.incarnation for c in accepted})

    def _of_alive(self, lives: Mapping[str, int]) -> dict[str, int]:
        return {r: i for r, i in lives.items() if self.alive.get(r) == i}
