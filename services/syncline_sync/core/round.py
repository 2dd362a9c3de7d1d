"""The open round of one fragment: who is in, with what weight, and who is waited for.

Pure data with its arithmetic; when to open it, whom to let in and when to close it is the
fragment's to decide.

Invariants:
    - ``expected`` is fixed when the round opens, and only shrinks;
    - a replica is in ``arrived`` at most once; ``total`` is the sum of the weights in it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from syncline_proto.ranges import NOTHING
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import weights
from syncline_sync.core.detector import Finding
from syncline_sync.core.record import Contribution, Kind, WholePush


@dataclass(slots=True)
class Round:
    """``result`` is the revision (or gradient step) that it will publish."""

    kind: Kind
    result: int
    opened_s: float
    waits_from_s: float
    """Where its deadline counts from: the first push, or the end of a pause."""
    expected: frozenset[str]
    scale: weights.Scale
    lost: bool = False
    """Whether somebody was waited for in vain."""
    total: float = 0.0
    arrived: dict[str, Contribution] = field(default_factory=dict[str, Contribution])
    """By replica, in the order of folding."""

    def lose(self, gone: Collection[str]) -> None:
        """Wait no longer for those who are ``gone``; what they have pushed stays in."""
        missing = self.expected.intersection(gone)
        self.lost = self.lost or bool(missing - self.arrived.keys())
        self.expected -= missing

    def enter(self, push: WholePush, finding: Finding, settings: RunSettings) -> Contribution:
        """Take a push in and return how it counts: a bad one with weight 0.

        ``push.norm`` is ||D||, and must be finite unless ``finding.bad``; its replica must not be
        in the round yet. In what is returned ``folded`` is the push's weight w before any division
        by W, and ``rescale`` the factor (1: none) by which all earlier weights, and so the
        accumulator, have shrunk: multiply first, then add ``folded`` * D.
        """
        weight, rescale = 0.0, 1.0
        if not finding.bad:
            weight, rescale = self._weight(push, settings)
            if rescale != 1.0:
                for name, c in self.arrived.items():
                    self.arrived[name] = replace(c, weight=c.weight * rescale)
            self.total = self.total * rescale + weight
        entered = Contribution(
            replica=push.replica,
            incarnation=push.incarnation,
            seq=push.seq,
            verdict=pb.VERDICT_ANOMALOUS if finding.bad else pb.VERDICT_ACCEPTED,
            folded=weight,
            rescale=rescale,
            weight=weight,
            norm=push.norm,
            z=finding.z,
            inner_steps=push.inner_steps,
            tokens=0 if push.kind is Kind.PARAMETERS else push.tokens,
            first_step=push.first_step,
            last_step=push.last_step,
            reason=finding.reason,
            data=NOTHING if push.kind is Kind.PARAMETERS else push.data,
        )
        self.arrived[push.replica] = entered
        return entered

    def contributions(self) -> tuple[Contribution, ...]:
        """Everyone in it, with weights that sum to 1 (or are all 0 if nobody counts)."""
        return tuple(
            replace(c, weight=c.weight / self.total if self.total else 0.0)
            for c in self.arrived.values()
        )

    def _weight(self, push: WholePush, settings: RunSettings) -> tuple[float, float]:
        """(weight, rescale); gradients are weighted by their tokens, parameters stand alone."""
        if push.kind is Kind.PARAMETERS:
            return 1.0, 1.0
        if push.kind is Kind.GRADIENT:
            return float(max(push.tokens, 1)), 1.0
        weight = weights.weigh(
            self.scale,
            push.norm,
            push.inner_steps / settings.sync_every,
            settings.penalty.step_power,
        )
        self.scale = weight.scale
        return weight.value, weight.rescale
