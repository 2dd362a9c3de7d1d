"""A push of one rank: who sends it, what is in it, what it must wait for, what became of it.

Plain data; an ``Exchange`` sends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from syncline.core.agreement import Answer
from syncline.payload import Payload, Values
from syncline.pulled import Held, Pulled
from syncline_proto.codec import CODEC_BY_NAME, Float32
from syncline_proto.errors import SynclineError
from syncline_proto.ranges import NOTHING, Ranges
from syncline_proto.v1 import sync_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who pushes: one rank of one life of one replica."""

    run: str
    replica: str
    incarnation: int
    rank: int
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What one rank sends of one fragment.

    Its payload must not change before the exchange ends, since it may have to be sent again; nor
    may what is ``held`` of the fragment, to which a difference may come.
    """

    fragment: int
    kind: pb.PushKind.ValueType
    payload: Payload
    base: int | None = None
    epoch: int | None = None
    """Of the base; None, where there is none, takes the one that was heard last."""
    gradient_step: int = 0
    phase: int | None = None
    """The synchronous phase that it is of; None: of none."""
    inner_steps: int = 1
    tokens: int = 0
    first_step: int = 0
    last_step: int = 0
    data: Ranges = NOTHING
    """Sequences of leased data that were read in those steps."""
    held: Held | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a push."""

    answer: Answer
    pulled: Pulled | None = None
    """The result; None when the replica was fenced or the exchange failed."""
    residual: pb.ResidualAction.ValueType = pb.RESIDUAL_ACTION_UNSPECIFIED
    loss: Float32 | None = None
    """What the codec lost of a push that counts, where its residual is to be kept."""
    anomalous: bool = False
    non_finite: bool = False
    reason: str = ""
    is_kept: bool = False
    """It came late and counts: its payload may have to be sent again after this."""
    age: int = 0
    """Where it came late and counts: revisions between its base and the one its round began from;
    0: it was in time."""
    lost: Ranges = NOTHING
    """Leased data that no push holds any more: of a gradient whose step closed without it, or of an
    earlier push that came late, was forgotten, and is too old by now."""
    error: SynclineError | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to pull: a revision, the mean of a gradient step, or (neither) the newest revision."""

    revision: int | None = None
    gradient_step: int | None = None
    values: bool = True
    """False: to know that it is published is enough."""
    phase: int | None = None
    """The synchronous phase in which it is to come; None: whichever."""


def header_of(push: Push, me: Identity, seq: int, boxes: Iterable[pb.Box]) -> pb.PushHeader:
    """What goes ahead of the values; without a base the epoch is still to be set."""
    return pb.PushHeader(
        run=me.run,
        epoch=push.epoch or 0,
        replica=me.replica,
        incarnation=me.incarnation,
        fragment=push.fragment,
        seq=seq,
        rank=me.rank,
        ranks=me.ranks,
        kind=push.kind,
        base_revision=push.base,
        gradient_step=push.gradient_step,
        phase=push.phase,
        codec=CODEC_BY_NAME[push.payload.codec],
        boxes=boxes,
        inner_steps=push.inner_steps,
        tokens=push.tokens,
        first_step=push.first_step,
        last_step=push.last_step,
        data=[pb.DataRange(epoch=e, start=start, stop=stop) for e, start, stop in push.data],
    )


def request_of(
    wanted: Wanted, me: Identity, fragment: int, epoch: int, boxes: Iterable[pb.Box], held: str
) -> pb.PullRequest:
    """What asks for the values in ``boxes``, of which there is at least one, or for none.

    ``held`` names the value that is held of them; empty: none is.
    """
    request = pb.PullRequest(
        run=me.run,
        epoch=epoch,
        replica=me.replica,
        incarnation=me.incarnation,
        fragment=fragment,
        boxes=boxes,
        header_only=not wanted.values,
        held=held,
        phase=wanted.phase,
    )
    if wanted.gradient_step is not None:
        request.gradient_step = wanted.gradient_step
    elif wanted.revision is not None:
        request.revision = wanted.revision
    else:
        request.newest = True
    return request


def verdict_of(answer: pb.PushResponse) -> pb.Verdict.ValueType:
    """How the push was judged, now or before."""
    return answer.judged if answer.verdict == pb.VERDICT_DUPLICATE else answer.verdict


def loss_by(push: Push, answer: pb.PushResponse) -> Float32 | None:
    """What the next push is to carry of a judged one; None: nothing."""
    kept = answer.residual == pb.RESIDUAL_ACTION_KEEP
    return push.payload.loss() if kept and isinstance(push.payload, Values) else None


def outcome_of(
    push: Push, answer: pb.PushResponse, pulled: Pulled, loss: Float32 | None
) -> Outcome:
    """What became of a judged push whose result is here, and which was not fenced."""
    judged = verdict_of(answer)
    late = judged == pb.VERDICT_STALE
    stale = late and push.kind == pb.PUSH_KIND_PSEUDO_GRADIENT
    return Outcome(
        answer=Answer.STALE if stale else Answer.MERGED,
        pulled=pulled,
        residual=answer.residual,
        loss=loss,
        anomalous=judged == pb.VERDICT_ANOMALOUS,
        non_finite=answer.non_finite,
        reason=answer.reason,
        age=age_of(push, answer),
        lost=push.data if late and push.kind == pb.PUSH_KIND_GRADIENT else NOTHING,
    )


def age_of(push: Push, answer: pb.PushResponse) -> int:
    """How late an accepted push came, in revisions; 0 where it was in time, or does not count."""
    if not answer.counts_in or push.base is None or verdict_of(answer) != pb.VERDICT_ACCEPTED:
        return 0
    return answer.counts_in - 1 - push.base


def wanted_by(push: Push, answer: pb.PushResponse) -> Wanted:
    """What a judged push must wait for."""
    if push.kind == pb.PUSH_KIND_GRADIENT:
        return Wanted(gradient_step=push.gradient_step, phase=push.phase)
    if push.kind == pb.PUSH_KIND_PARAMETERS:
        first = push.base is None
        return Wanted(revision=0 if first else 1, values=not first, phase=push.phase)
    return Wanted(revision=answer.result_revision)


def is_settled(answer: pb.PushResponse) -> bool:
    """Whether a judged push is not sent again though its service may have forgotten it.

    It counts for nothing; or it came late, and LatePushes sees to it. What was pulled for it was
    published before, so ranks end at different times, and who sent it again would wait for others
    that do not.
    """
    is_in = verdict_of(answer) in (pb.VERDICT_ACCEPTED, pb.VERDICT_ANOMALOUS)
    return not is_in or answer.counts_in > answer.result_revision


def is_forgotten(
    header: pb.PushHeader, answer: pb.PushResponse, instance: str, pulled: Pulled
) -> bool:
    """Whether a push may be missing in the result that was pulled for it.

    ``instance`` is who has judged it. One that starts anew between verdict and pull has not got
    what was only in memory, and may have published without it.
    """
    there = pulled.header
    if there.instance == instance or is_settled(answer):
        return False
    mine = (header.replica, header.incarnation, header.seq)
    return mine not in ((c.replica, c.incarnation, c.seq) for c in there.contributions)
