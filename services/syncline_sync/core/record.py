"""What a fragment knows and says, as values: pushes, judgements, contributions, saved state.

Pure data. ``Saved`` is what the store keeps beside the parameters; everything in it survives a
restart, so a service that comes back judges as before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from syncline_proto.merging import OuterSettings
from syncline_proto.ranges import NOTHING, Ranges
from syncline_proto.stretches import Stretches
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.detector import Statistics, is_finite
from syncline_sync.core.window import Carry, Window

STRANGERS_MAX = 1_000
"""Replicas that are remembered (norms, last push) although they hold no lease: the newest."""

SEQS_KEPT = 16
"""Committed pushes of a replica that are remembered one by one, beside its newest."""

KEPT = 2
"""Revisions (and gradient steps) of a fragment that are kept: on disk and for pulls alike."""

T = TypeVar("T")


class Kind(StrEnum):
    """What a push carries, and so what its round does."""

    PSEUDO_GRADIENT = "pseudo-gradient"
    GRADIENT = "gradient"
    PARAMETERS = "parameters"


class ClosedBy(StrEnum):
    """Why a round ended."""

    EVERYONE = "everyone"
    PUSH = "push"
    """It waits for nobody: each push is one of its own."""
    QUORUM = "quorum"
    """Enough were in, and who was still missing had its grace."""
    DEADLINE = "deadline"
    LOSS = "loss"
    """Whoever was still missing lost its lease."""
    OFFER = "offer"
    """Parameters were offered and set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePush:
    """All shards of one replica's push are in; ``norm`` is over the whole fragment, decoded."""

    replica: str
    incarnation: int
    seq: int
    epoch: int
    kind: Kind
    base: int | None
    gradient_step: int
    norm: float
    inner_steps: int
    tokens: int
    first_step: int
    last_step: int
    data: Ranges = NOTHING
    """Sequences that it was trained on, where the data is leased."""
    phase: int | None = None
    """The synchronous phase that it is of; None: the one that goes on."""


RESIDUAL = {
    pb.VERDICT_ACCEPTED: pb.RESIDUAL_ACTION_KEEP,
    pb.VERDICT_STALE: pb.RESIDUAL_ACTION_RESTORE,
    pb.VERDICT_ANOMALOUS: pb.RESIDUAL_ACTION_CLEAR,
    pb.VERDICT_FENCED: pb.RESIDUAL_ACTION_KEEP,
}
"""What becomes of the error that a push's codec left, so that accepted + discarded + residual stays
all progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The answer to a push, and what is to be done with it.

    ``weight`` > 0, as for every accepted one that does not set: multiply the accumulator by
    ``rescale``, then fold with ``weight``.
    ``sets``: the push is the parameters themselves.
    """

    verdict: pb.Verdict.ValueType
    result: int
    reason: str = ""
    judged: pb.Verdict.ValueType | None = None
    """For a duplicate, the verdict given the first time."""
    weight: float = 0.0
    rescale: float = 1.0
    sets: bool = False
    non_finite: bool = False
    counts_in: int = 0
    """The revision that will contain it, where that is not ``result``: of a late push."""

    @property
    def first(self) -> pb.Verdict.ValueType:
        """The verdict given the first time: of a duplicate, too."""
        return self.judged or self.verdict

    @property
    def residual(self) -> pb.ResidualAction.ValueType:
        """What its replica does with the residual that the push left."""
        return RESIDUAL[self.first]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What became of one replica's push in a round, in the order of folding."""

    replica: str
    incarnation: int
    seq: int
    verdict: pb.Verdict.ValueType
    folded: float
    """What it was multiplied by when folded; 0 for an anomalous one."""
    rescale: float
    """What the accumulator was multiplied by just before."""
    weight: float
    """Its part of the merge; from the round's close on, weights sum to 1, or to less with age, or
    are of a window, where a push is a round."""
    norm: float
    z: float
    inner_steps: int
    tokens: int
    first_step: int
    last_step: int
    reason: str = ""
    data: Ranges = NOTHING
    age: int = 0
    """Revisions between its base and the one that its round starts from; 0: it was timely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPush:
    """A replica's newest committed push, and which older ones are committed, too."""

    incarnation: int
    seq: int
    verdict: pb.Verdict.ValueType
    result: int
    non_finite: bool = False
    before: tuple[int, ...] = ()
    """``seq`` of those before it that came where a push may be committed after a later one; at most
    ``SEQS_KEPT``, ascending."""
    until: int = 0
    """Up to this ``seq`` all are dealt with."""

    def holds(self, seq: int, with_gaps: bool) -> bool:
        """Whether a push is committed, or older than all that could still be.

        ``with_gaps``: a push may be committed after one that was made later. Else whatever is
        older than the newest is dealt with.
        """
        if with_gaps and seq < self.seq:
            return seq <= self.until or seq in self.before
        return seq <= self.seq

    def after(self, c: Contribution, result: int, with_gaps: bool) -> LastPush:
        """With one more of a round; ``with_gaps`` as in ``holds``."""
        new = LastPush.of(c, result, with_gaps)
        if c.incarnation != self.incarnation or not with_gaps:
            return new
        newest = new if c.seq > self.seq else self
        others = sorted({*self.before, self.seq, c.seq} - {newest.seq})
        gone = others[: max(0, len(others) - SEQS_KEPT)]
        return replace(newest, before=tuple(others[len(gone) :]), until=max(self.until, *gone, 0))

    @classmethod
    def of(cls, c: Contribution, result: int, with_gaps: bool) -> LastPush:
        """The first of a life in a round."""
        return cls(
            incarnation=c.incarnation,
            seq=c.seq,
            verdict=c.verdict,
            result=result,
            non_finite=not is_finite(c.norm),
            until=0 if with_gaps else c.seq,
        )


def remembered(
    rows: Mapping[str, T], newest: Sequence[str], members: Collection[str]
) -> dict[str, T]:
    """``rows`` by replica, the ``newest`` put last, without the oldest of too many strangers."""
    now = set(newest)
    ordered = [name for name in rows if name not in now]
    ordered += [name for name in newest if name in rows]
    strangers = [name for name in ordered if name not in members]
    forgotten = set(strangers[:-STRANGERS_MAX])
    return {name: rows[name] for name in ordered if name not in forgotten}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A fragment's memory between rounds."""

    epoch: int = 1
    revision: int = 0
    gradient_step: int = 0
    committed_tokens: int = 0
    statistics: Statistics = Statistics()
    measured: str = ""
    """Codec, interval and strategy under which the statistics were learnt."""
    last: Mapping[str, LastPush] = field(default_factory=dict[str, LastPush])
    contributions: tuple[Contribution, ...] = ()
    """Of the round that made this revision (or gradient step)."""
    window: Window = Window()
    """Of a run whose rounds do not wait."""
    down: str = "bf16"
    """The downlink codec of this revision: its published value is what that decodes to."""
    taking_part: Mapping[str, int] = field(default_factory=dict[str, int])
    """Replica -> incarnation of those whose push was accepted and who have not gone since."""
    phase: int = 0
    """How often the synchronous phase has started again before this."""
    trained: Stretches = ()
    """Sequences of leased data that accepted pushes were trained on, since the run began."""
    excluded: Stretches = ()
    """Those of pushes that were judged anomalous."""

    @property
    def is_by_difference(self) -> bool:
        """Whether its published value follows from the one before by a difference of int8."""
        return self.down == "int8"

    def restored(self) -> Saved:
        """What another run that begins here knows: all but whose pushes made it.

        Norms stay under the names of their replicas, whose optimizers begin anew, though; so do
        lives and numbers of pushes, so that nobody's first push there is taken for a duplicate.
        """
        begun = replace(self, epoch=1, last={}, contributions=(), taking_part={}, phase=0)
        return replace(begun, statistics=self.statistics.of_new_lives())


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """A round has ended: what to compute, and what to keep and tell."""

    kind: Kind
    closed_by: ClosedBy
    total_weight: float
    outer: OuterSettings
    carry: Carry | None
    """What becomes of the momentum; None: what ``outer`` says."""
    saved: Saved
    opened_s: float
    effective_sample_size: float | None
    direction_scale: float | None = None
    """The sum times this is D, whose direction is corrected before the outer step; None: no
    direction is corrected."""
    behind: bool = False
    """Whether it is published at once, and written behind that."""
    told: tuple[str, ...] = ()
    """Sentences on the fragment."""
    told_of_run: tuple[str, ...] = ()
    """On the run: each of its fragments says the same."""
