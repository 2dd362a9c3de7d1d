"""Where a replica with eager updates trains on from when it has pushed.

Keeps, for each fragment, the echo of its earlier pushes: 4 bytes a parameter, and as many again
while a push is under way. Runs on the training thread, and waits there at each push for what a GPU
has to copy, both ways. The formulas are ``core.eager``'s.
"""

from __future__ import annotations

import numpy as np

from syncline.anchors import Anchors
from syncline.core.eager import ahead, echo_after
from syncline.hooks import Hooks
from syncline.push import Outcome
from syncline_proto.codec import Float32
from syncline_proto.merging import OuterSettings
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb


class Eager:
    """One replica's eager updates; after a push, ``move`` is called where it ``is_on``."""

    def __init__(self, anchors: Anchors, hooks: Hooks, settings: RunSettings) -> None:
        """Before a round has told how many count, each of those that are expected has its share."""
        self._anchors, self._hooks = anchors, hooks
        self._outer, self.is_on = settings.outer, settings.overlap_eager
        self._shares = [1.0 / settings.replicas] * len(anchors.shards)
        self._echoes: dict[int, Float32] = {}

    def adopt(self, outer: OuterSettings) -> None:
        """Go by these from the next push on."""
        self._outer = outer

    def see(self, fragment: int, outcome: Outcome) -> None:
        """Learn from a round that was merged how many share the next one."""
        assert outcome.pulled is not None
        contributions = outcome.pulled.header.contributions
        counted = sum(c.verdict == pb.VERDICT_ACCEPTED for c in contributions)
        if counted:
            self._shares[fragment] = 1.0 / counted

    def forget(self, fragment: int) -> None:
        """A push of the fragment did not count, or the replica begins anew: so does its echo."""
        self._echoes.pop(fragment, None)

    def clear(self) -> None:
        """As ``forget``, of all fragments."""
        self._echoes.clear()

    def move(self, fragment: int, current: Float32) -> Float32:
        """Take the model from ``current``, which was pushed, to where training goes on from.

        ``current`` (fp32, flat) becomes what the model holds. Returns what to add to go back.
        """
        anchor, share, outer = self._anchors.value(fragment), self._shares[fragment], self._outer
        with self._hooks.writing(fragment), np.errstate(over="ignore", invalid="ignore"):
            # What is not finite, the service judges.
            delta = anchor - current
            echo = self._echoes.setdefault(fragment, np.zeros_like(delta))
            start = anchor - ahead(delta, echo, share, outer.lr, outer.momentum)
            echo_after(delta, echo, share, outer.momentum)
            back = current.copy()
            self._anchors.put(fragment, start)
            self._anchors.read_into(fragment, current)
            back -= current
        return back
