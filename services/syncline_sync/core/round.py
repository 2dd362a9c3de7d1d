"""The open round of one fragment: who is in, with what weight, and who is waited for.

Pure data with its arithmetic; when to open it, whom to let in and when to close it is the
fragment's to decide.

A push is timely if its base is the revision that the round starts from. A late one, where the
run takes those, has an age: it counts for less, and nobody's wait ends with it.

Invariants:
    - ``expected`` is fixed when the round opens, and only shrinks;
    - a replica has at most one timely and one late push in it; ``total`` is the sum of the weights
      of all, without what age takes from them, or, where a push is a round, its window's size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from syncline_proto.ranges import NOTHING
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import weights
from syncline_sync.core.detector import Finding
from syncline_sync.core.record import Contribution, Kind, WholePush
from syncline_sync.core.staleness import age_factor, rounds_late
from syncline_sync.core.window import Window


@dataclass(slots=True)
class Round:
    """``result`` is the revision (or gradient step) that it will publish."""

    kind: Kind
    result: int
    opened_s: float
    expected: frozenset[str]
    scale: weights.Scale
    window: Window | None = None
    """Of a run whose rounds do not wait, with ``size`` of the pushes that this one is of."""
    lost: bool = False
    """Whether somebody was waited for in vain."""
    resumed_s: float | None = None
    """When a pause ended in it, or a time with too few members."""
    total: float = 0.0
    timely_s: list[float] = field(default_factory=list[float])
    """When its timely pushes came."""
    entries: dict[tuple[str, bool], Contribution] = field(
        default_factory=dict[tuple[str, bool], Contribution]
    )
    """By replica and whether it is late, in the order of folding."""

    @property
    def arrived(self) -> dict[str, Contribution]:
        """The timely pushes, by replica."""
        return {name: c for (name, is_late), c in self.entries.items() if not is_late}

    @property
    def replicas(self) -> frozenset[str]:
        """Whoever has a push in it."""
        return frozenset(name for name, _ in self.entries)

    @property
    def waits_from_s(self) -> float | None:
        """Where its deadline counts from: the first timely push, or the end of a pause."""
        if not self.timely_s:
            return None
        return max(self.timely_s[0], self.resumed_s or self.timely_s[0])

    def quorum_s(self, quorum: int) -> float | None:
        """When so many timely pushes were in; None before that."""
        return next(islice(self.timely_s, quorum - 1, None), None)

    def of(self, replica: str, incarnation: int) -> list[Contribution]:
        """What this life has in it."""
        mine = (self.entries.get((replica, is_late)) for is_late in (True, False))
        return [c for c in mine if c is not None and c.incarnation == incarnation]

    def has_data_of_gone(self, members: Mapping[str, int]) -> bool:
        """Whether it has leased data of lives that are no ``members``, by incarnation."""
        of_data = (c for c in self.entries.values() if c.data)
        return any(members.get(c.replica) != c.incarnation for c in of_data)

    def lose(self, gone: Collection[str]) -> None:
        """Wait no longer for those who are ``gone``; what they have pushed stays in."""
        missing = self.expected.intersection(gone)
        self.lost = self.lost or bool(missing - self.arrived.keys())
        self.expected -= missing

    def enter(
        self, now_s: float, push: WholePush, finding: Finding, settings: RunSettings, age: int = 0
    ) -> Contribution:
        """Take a push in and return how it counts: a bad one with weight 0.

        ``push.norm`` is ||D||, and must be finite unless ``finding.bad``; its replica must not have
        one in the round yet that is timely, or late, like it. In what is returned ``folded`` is
        the push's weight w * a before any division by W (a: what its ``age`` leaves of it), or
        ``WEIGHT_MIN`` if that is more, and ``rescale`` the factor (1: none) by which all earlier
        weights, and so the accumulator, have shrunk: multiply first, then add ``folded`` * D. W is
        ``total``, in which age takes nothing from the w: it makes a push count for less, and the
        others not for more.
        """
        weight, rescale = 0.0, 1.0
        if not finding.bad:
            weight, rescale = self._weight(push, settings)
            if rescale != 1.0:
                for key, c in self.entries.items():
                    self.entries[key] = replace(c, weight=c.weight * rescale)
            size = self.window.size if self.window else 1
            self.total = self.total * rescale + weight if self.window is None else float(size)
            weight *= age_factor(settings.late, rounds_late(age, size), settings.age_max)
        entered = Contribution(
            replica=push.replica,
            incarnation=push.incarnation,
            seq=push.seq,
            verdict=pb.VERDICT_ANOMALOUS if finding.bad else pb.VERDICT_ACCEPTED,
            folded=0.0 if finding.bad else max(weight, weights.WEIGHT_MIN),
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
            age=age,
        )
        self.entries[push.replica, age > 0] = entered
        if age == 0:
            self.timely_s.append(now_s)
        return entered

    def contributions(self) -> tuple[Contribution, ...]:
        """Everything in it, with weights over W.

        They sum to 1, or to less where age has taken some; where a push is a round, they are of a
        window. What counts is told as ``WEIGHT_MIN`` at least, also where a quieter push came later
        and made it weigh less: else a still louder one, folded with that, would seem to have more.
        """
        return tuple(
            replace(c, weight=max(c.weight, weights.WEIGHT_MIN) / self.total if c.folded else 0.0)
            for c in self.entries.values()
        )

    def _weight(self, push: WholePush, settings: RunSettings) -> tuple[float, float]:
        """(weight, rescale); gradients are weighted by their tokens, parameters stand alone."""
        if push.kind is Kind.PARAMETERS:
            return 1.0, 1.0
        if push.kind is Kind.GRADIENT:
            return float(max(push.tokens, 1)), 1.0
        if self.window is not None:
            return self.window.weight(self.scale, settings, push.norm, push.inner_steps), 1.0
        weight = weights.weigh(
            self.scale,
            push.norm,
            push.inner_steps / settings.sync_every,
            settings.penalty.step_power,
        )
        self.scale = weight.scale
        return weight.value, weight.rescale
