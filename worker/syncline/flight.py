"""What a fragment of a replica has beyond its anchor: progress to push, and a push under way.

Values only; ``rounds`` moves them.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace

from syncline.carrier import Fetched
from syncline.push import Outcome, Push
from syncline_proto.codec import Float32
from syncline_proto.ranges import NOTHING, Ranges, joined, without


@dataclass(frozen=True, slots=True)
class Unpushed:
    """Progress that no push holds: inner steps since ``first_step``, and their tokens."""

    first_step: int = 0
    tokens: int = 0
    data: Ranges = NOTHING
    """Sequences of leased data that no push has named."""

    def more(self, tokens: int, data: Ranges) -> Unpushed:
        """With so many tokens more, of these sequences."""
        return Unpushed(self.first_step, self.tokens + tokens, joined(self.data, data))

    def named(self, data: Ranges) -> Unpushed:
        """Without these sequences, which a push has named that is in the run."""
        return replace(self, data=without(self.data, data))

    def after(self, push: Push) -> Unpushed:
        """With what a push held that came late: it is progress again."""
        data = joined(push.data, self.data)
        return Unpushed(push.first_step, push.tokens + self.tokens, data)

    def after_undone(self, push: Push) -> Unpushed:
        """As after one whose progress the model does not have any more; it was read, though."""
        return self.more(0, push.data)

    def forgotten(self, step: int) -> Unpushed:
        """Without the steps up to this one; what they have read has been read."""
        return Unpushed(step, data=self.data)


@dataclass(frozen=True, slots=True)
class Flight:
    """A push, from when it is made until its result is merged."""

    push: Push
    result: Future[Outcome]
    lands_at: int
    """The inner step from which on its result is waited for; until then training goes on."""
    start: Fetched | None = None
    """This rank's parameters when it was pushed (fp32, flat), if training goes on meanwhile."""
    back: Float32 | None = None
    """What to add to ``start`` to have what was pushed; None: ``start`` is that (see ``eager``)."""
    is_undone: bool = False
    """The model went back behind what was pushed: if it comes late, it is no progress any more."""
