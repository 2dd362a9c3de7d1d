"""What came of a flight, written into the model: the end of one push, and what it leaves.

Runs on the training thread, in the same order on every rank. When a flight lands, and what is
pushed next, is for ``rounds``.
"""

from __future__ import annotations

from syncline.anchors import Anchors
from syncline.carrier import Fetched
from syncline.core.agreement import Conclusion
from syncline.core.feedback import Residuals, action_for
from syncline.core.timed import Publication
from syncline.flight import Flight
from syncline.hooks import Hooks
from syncline.payload import Values
from syncline.pulled import Pulled
from syncline.push import Outcome, Push
from syncline.tally import Tally
from syncline_proto.v1 import sync_pb2 as pb


class Landing:
    """Writes into the fragments of one replica."""

    def __init__(
        self,
        anchors: Anchors,
        hooks: Hooks,
        tally: Tally,
        overlap_mix: float | None,
        replica: str,
    ) -> None:
        """``replica`` is this one's name."""
        self.newest: Publication | None = None
        """The last fragment's revision that was written last, and when it was published."""
        self.residuals = Residuals()
        """What codecs have lost, for the pushes that follow."""
        self._anchors, self._hooks, self._tally = anchors, hooks, tally
        self._overlap_mix, self._replica = overlap_mix, replica

    def settle(self, push: Push, conclusion: Conclusion, outcome: Outcome) -> None:
        """Keep what the codec lost of a push, or what was owed before it, or nothing."""
        if push.kind != pb.PUSH_KIND_PSEUDO_GRADIENT:
            return  # nothing that was owed went with it
        action, loss = action_for(conclusion, outcome.residual), outcome.loss
        if action == pb.RESIDUAL_ACTION_KEEP and loss is None and isinstance(push.payload, Values):
            loss = push.payload.loss()
        self.residuals.settle(push.fragment, action, loss)

    def adopt(self, fragment: int, outcome: Outcome, start: Fetched | None = None) -> None:
        """Make what was pulled the anchor, and the model it and what it did since ``start``."""
        assert outcome.pulled is not None
        values, header = outcome.pulled.values, outcome.pulled.header
        with self._hooks.writing(fragment):
            if start is None:
                self._anchors.adopt(fragment, values, header)
            else:
                self._anchors.advance(fragment, values, header, start, self._overlap_mix)
        self._see(fragment, outcome.pulled)

    def rebase(self, flight: Flight, outcome: Outcome) -> None:
        """It came late: move the progress onto the newest anchor."""
        assert outcome.pulled is not None
        fragment = flight.push.fragment
        with self._hooks.writing(fragment):
            header = outcome.pulled.header
            self._anchors.rebase(fragment, outcome.pulled.values, header, flight.back)
        self._see(fragment, outcome.pulled)

    def restore(self, fragment: int) -> None:
        """Go back to the anchor."""
        with self._hooks.writing(fragment):
            self._anchors.restore(fragment)

    def _see(self, fragment: int, pulled: Pulled) -> None:
        """Take what comes with a new anchor.

        The last fragment in forward order is the one whose tokens count for the run.
        """
        header = pulled.header
        self.residuals.see_epoch(fragment, header.epoch)
        if fragment == len(self._anchors.revisions) - 1:
            self._tally.growth = header.committed_tokens - self._tally.committed
            self._tally.committed = header.committed_tokens
            counted = [c for c in header.contributions if c.verdict == pb.VERDICT_ACCEPTED]
            self._tally.of_round = sum(c.tokens for c in counted)
            own = (c.tokens for c in counted if c.replica == self._replica)
            self._tally.own_of_round = sum(own)
            at_s = pulled.published_s
            self.newest = Publication.of(header.revision, at_s, counted, self._replica)
