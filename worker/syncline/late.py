"""Pushes that came late, and count in a round which is still open: kept until that is published.

A replica goes on at once after such a push, but its service has it in memory only. One that starts
anew has forgotten it, so it is sent again then; what the service has of it, it knows. Changed by
the exchanges' threads, each of its own fragment. Sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from syncline.push import Push
from syncline.scratch import Scratch
from syncline_proto.v1 import sync_pb2 as pb


@dataclass(frozen=True, slots=True)
class Late:
    """A push that counts in a revision to come."""

    push: Push
    header: pb.PushHeader
    counts_in: int
    instance: str
    """Of the service process that has it."""

    def is_in(self, header: pb.PullHeader) -> bool:
        """Whether what was pulled later shows that it is published."""
        return header.instance == self.instance and header.revision >= self.counts_in

    def may_be_lost(self, header: pb.PullHeader) -> bool:
        """Whether another process has answered than the one that took it."""
        return header.instance != self.instance


class LatePushes:
    """Those of one rank: of a fragment at most one, since a round takes no more of a replica."""

    def __init__(self, scratch: Scratch) -> None:
        """Their memory goes back to ``scratch``."""
        self._scratch = scratch
        self._kept: dict[int, Late] = {}

    def keep(
        self, push: Push, header: pb.PushHeader, answer: pb.PushResponse, instance: str
    ) -> bool:
        """Keep a judged push if it counts later than in what it is answered with; say whether."""
        counts = answer.counts_in > answer.result_revision
        if counts:
            before = self._kept.get(push.fragment)
            if before is not None and before.push is not push:
                self.drop(push.fragment)  # its round is over: that had no room for a second one
            self._kept[push.fragment] = Late(push, header, answer.counts_in, instance)
        return counts

    def lost(self, fragment: int, header: pb.PullHeader) -> Late | None:
        """What is to be sent again, by the header of what a later push has led to."""
        late = self._kept.get(fragment)
        if late is not None and late.is_in(header):
            self.drop(fragment)
        return late if late is not None and late.may_be_lost(header) else None

    def drop(self, fragment: int) -> None:
        """It is published, or never will be."""
        late = self._kept.pop(fragment, None)
        if late is not None:
            self._scratch.give_back(late.push.payload.memory)
