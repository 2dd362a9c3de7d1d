"""Pushes of one fragment that came late, and count in a round which is still open.

Their replica has gone on, and the service has them in memory only. So they are kept until a
revision that holds them is published, and sent again to a process that may never have had them.
Sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from chaos.ledger import Sent
from chaos.plan import Anchor
from syncline_proto.v1 import sync_pb2 as pb


@dataclass(frozen=True, slots=True)
class Late:
    """A push with all that it takes to send it again."""

    sent: Sent
    payloads: list[bytes]
    counts_in: int
    instance: str
    """Of the process that has it, or of one before that."""

    def is_out(self, seen: Anchor) -> bool:
        """Whether the process that took it has published what it counts in."""
        return self.instance == seen.instance and self.counts_in <= seen.revision


class LatePushes:
    """Those of one life. A round takes one of a replica, but not each is out by the next one."""

    def __init__(self) -> None:
        self.kept: list[Late] = []

    def keep(
        self, sent: Sent, payloads: list[bytes], answer: pb.PushResponse, base: Anchor
    ) -> None:
        """It was answered by the process that ``base`` came from, or by a later one."""
        self.kept.append(Late(sent, payloads, answer.counts_in, base.instance))

    def missing(self, seen: Anchor, is_committed: Callable[[Sent], bool]) -> list[Late]:
        """Those to be sent again, by what was pulled last; what is published is forgotten.

        One that is out and not committed has gone back since.
        """
        kept = self.kept
        self.kept = [one for one in kept if not (one.is_out(seen) and is_committed(one.sent))]
        return [one for one in self.kept if one.instance != seen.instance or one.is_out(seen)]

    def answered(self, late: Late, answer: pb.PushResponse, seen: Anchor) -> None:
        """It was sent again after ``seen`` had come."""
        self.kept.remove(late)
        if answer.counts_in:
            again = replace(late, counts_in=answer.counts_in, instance=seen.instance)
            self.kept.append(again)
