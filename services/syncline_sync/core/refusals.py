"""Why a push does not enter the open round: stale, judged before, or from a life that has ended.

Pure. These are answers, not errors: a healthy system gives them every day. Only what contradicts
where the run stands is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from syncline_proto.errors import InvalidRequest, LeaseLost
from syncline_proto.stretches import MADE_MAX, added
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.detector import is_finite, unfit
from syncline_sync.core.phase import is_synchronous
from syncline_sync.core.record import KEPT, Judgement, Kind, Saved, WholePush
from syncline_sync.core.round import Round

KEPT_RANGES_MAX = 1 << 14
"""Ranges that a fragment keeps of what it was trained on, where epochs that are alike count as one:
every commit writes all of them, and one report tells the control plane of them (which takes 65,536
lists in a body)."""

EXCLUDED_RANGES_MAX = KEPT_RANGES_MAX // (MADE_MAX + 1)
"""Ranges that it keeps of what was excluded. Each splits a range around it that was trained, so
half of those must be free as well. A replica that is excluded thus meets a bound before those whose
pushes count meet theirs."""


def fenced(
    members: Mapping[str, int], replica: str, incarnation: int, revision: int
) -> Judgement | None:
    """The answer to a replica that does not hold its lease (any more); None if it does."""
    holder = members.get(replica)
    if holder == incarnation:
        return None
    why = "holds no lease" if holder is None else f"lives on as incarnation {holder}"
    return Judgement(
        verdict=pb.VERDICT_FENCED,
        result=revision,
        reason=f"{replica} {why}; incarnation {incarnation} must stop or register anew.",
    )


def check_alive(members: Mapping[str, int], replica: str, incarnation: int) -> None:
    """See that a life that only reads has not been taken over from; it may not be a member yet.

    Raises:
        LeaseLost: a newer one holds the lease.
    """
    holder = members.get(replica, 0)
    if holder > incarnation:
        raise LeaseLost(
            f"{replica} lives on as incarnation {holder}; incarnation {incarnation} must stop."
        )


def duplicate(verdict: pb.Verdict.ValueType, result: int, non_finite: bool) -> Judgement:
    """The answer to a push that was judged before, with ``verdict``."""
    return Judgement(
        verdict=pb.VERDICT_DUPLICATE,
        judged=verdict,
        result=result,
        non_finite=non_finite,
        reason="this push was judged before.",
    )


def late_answer(judgement: Judgement, revision: int) -> Judgement:
    """Of a late push, which counts in the open round: its replica goes on from what is published.

    ``revision`` is that.
    """
    return replace(judgement, counts_in=judgement.result, result=revision)


def inside(
    r: Round | None, revision: int, replica: str, incarnation: int, seq: int, with_gaps: bool
) -> Judgement | None:
    """DUPLICATE for a push that the open round contains; else None.

    ``revision`` is the newest published; ``with_gaps`` as in ``LastPush.holds``.
    """
    for c in r.of(replica, incarnation) if r else ():
        assert r is not None
        if seq == c.seq:
            again = duplicate(c.verdict, r.result, not is_finite(c.norm))
            return late_answer(again, revision) if c.age and r.window is None else again
        if seq < c.seq and not with_gaps:
            return duplicate(pb.VERDICT_ACCEPTED, revision, non_finite=False)
    return None


def last_seq(r: Round | None, saved: Saved, replica: str, incarnation: int) -> int:
    """The largest ``seq`` of this life's pushes that are in a round, open or committed; else 0."""
    last = saved.last.get(replica)
    committed = [last.seq] if last and last.incarnation == incarnation else []
    return max((*(c.seq for c in (r.of(replica, incarnation) if r else ())), *committed), default=0)


def another_epoch(saved: Saved, epoch: int) -> Judgement | None:
    """STALE for progress since a revision of another ``epoch`` than this one."""
    if epoch == saved.epoch:
        return None
    has_been = 1 <= epoch < saved.epoch
    what = "has ended" if has_been else "is none of this service's"
    return stale(f"epoch {epoch} {what}, this is {saved.epoch}", saved.revision)


def known(
    saved: Saved, replica: str, incarnation: int, seq: int, with_gaps: bool
) -> Judgement | None:
    """DUPLICATE for a push that a committed round contains, or that is older; else None.

    ``with_gaps`` as in ``LastPush.holds``.
    """
    last = saved.last.get(replica)
    if last is None or last.incarnation != incarnation or not last.holds(seq, with_gaps):
        return None
    if seq == last.seq:
        return duplicate(last.verdict, last.result, last.non_finite)
    return duplicate(pb.VERDICT_ACCEPTED, saved.revision, False)


def stale(why: str, result: int) -> Judgement:
    """The answer to a push that came too late; ``result`` is what to pull."""
    return Judgement(verdict=pb.VERDICT_STALE, result=result, reason=f"{why}.")


def late(saved: Saved, warmup_steps: int, age_max: int, push: WholePush) -> Judgement | None:
    """STALE for a pseudo-gradient or gradient whose round has closed; None for one that counts.

    ``age_max``: revisions that a pseudo-gradient's base may lie behind.

    Raises:
        InvalidRequest: a gradient of a step that is to come after the next.
    """
    synchronous = is_synchronous(saved, warmup_steps)
    if push.kind is Kind.GRADIENT:
        if not synchronous:
            return stale("the synchronous phase is over", saved.revision)
        return _late_gradient(saved, warmup_steps, push)
    if synchronous:
        return stale("the synchronous phase goes on; wait for revision 1", 1)
    if push.base is None or not 0 <= saved.revision - push.base <= age_max:
        why = f"its base is revision {push.base}, the round starts from {saved.revision}"
        return stale(why, saved.revision)
    return None


def age_of(saved: Saved, push: WholePush) -> int:
    """Revisions between a push's base and the one that the open round starts from."""
    if push.kind is not Kind.PSEUDO_GRADIENT or push.base is None:
        return 0
    return saved.revision - push.base


def goes_on(saved: Saved, r: Round | None, synchronous: bool, push: WholePush) -> bool:
    """Whether a replica whose push was STALE pushes the next one like everybody.

    From the newest revision; or with the mean of a gradient step that is kept, until the replica
    has pulled it: with the step that is open (``r``) the oldest goes.
    """
    if push.kind is Kind.PSEUDO_GRADIENT:
        return not synchronous
    of_now = synchronous and push.phase in (None, saved.phase)
    newest = r.result if r is not None and r.kind is Kind.GRADIENT else saved.gradient_step
    return of_now and newest - KEPT < push.gradient_step <= saved.gradient_step


def check_data(saved: Saved, r: Round | None, push: WholePush, bad: str) -> None:
    """See that what the fragment keeps of leased data stays few ranges; ``r`` is the open round.

    What a push adds to ranges that are kept is taken always, of one that counts. ``bad``: why it
    does not count, if it does not.

    Raises:
        InvalidRequest: the push names sequences apart from those, and there are too many already.
    """
    kept, most = (saved.excluded, EXCLUDED_RANGES_MAX) if bad else (saved.trained, KEPT_RANGES_MAX)
    of_kind = pb.VERDICT_ANOMALOUS if bad else pb.VERDICT_ACCEPTED
    under_way = [c.data for c in r.entries.values() if c.verdict == of_kind] if r else []
    more = sum(map(len, under_way)) + len(push.data)
    is_parted = bool(bad) and 2 * len(saved.trained) > KEPT_RANGES_MAX
    if not push.data or (len(kept) + MADE_MAX * more <= most and not is_parted):
        return
    before = added(kept, *under_way)
    after = len(added(before, push.data))
    if bad and (after > most or is_parted):
        raise InvalidRequest(
            f"data: {push.replica} does not count ({bad}), and the fragment can remember no more "
            f"ranges of pushes that do not; see why {push.replica} is excluded before it joins "
            "again. What it has read others read."
        )
    if after > max(len(before), most):
        raise InvalidRequest(
            f"data: with it the fragment had {after} ranges to remember, and keeps {most}; read "
            "what is leased in one piece, and epochs to their ends."
        )


def another(r: Round | None, saved: Saved, push: WholePush) -> Judgement | None:
    """STALE for a second push of a replica in the open round; None for its first.

    One in time and one late may be in it.
    """
    replica, is_late = push.replica, age_of(saved, push) > 0
    if r is None or (replica, is_late) not in r.entries:
        return None
    why = f"round {r.result} has a{' late' if is_late else ''} push of {replica} already"
    return stale(why, saved.revision if is_late else r.result)


def offer(
    saved: Saved, r: Round | None, warmup_steps: int, push: WholePush, *, is_set: bool
) -> Judgement | None:
    """STALE for parameters that somebody else has offered, or that are there; None for the first.

    ``is_set``: the fragment has its revision 0. ``r`` is the open round.

    Raises:
        InvalidRequest: the synchronous phase goes on, or they are not finite, or they name a base
            where there is none yet.
    """
    synchronous = is_synchronous(saved, warmup_steps)
    if push.base is not None and not is_set and r is None:
        raise InvalidRequest(
            f"base_revision: {push.base} where nobody has offered parameters yet; first ones have "
            "none."
        )
    first = push.base is None and not is_set
    last = push.base == 0 and synchronous and is_set
    if last and (ended := _of_another_phase(saved, push)):
        return ended
    if last and saved.gradient_step < warmup_steps:
        raise InvalidRequest(
            f"push: the synchronous phase is at step {saved.gradient_step} of "
            f"{warmup_steps}; parameters cannot be offered yet."
        )
    if not (first or last) or r is not None:
        # Not of a round that waits for pushes: it may be waiting for this very replica.
        result = r.result if r and r.kind is Kind.PARAMETERS else saved.revision
        why = "another replica has offered these parameters, or the run has them"
        return stale(why, result)
    if not is_finite(push.norm):
        raise InvalidRequest(f"push: {unfit(push.norm)}; such parameters are refused.")
    return None


def _late_gradient(saved: Saved, warmup_steps: int, push: WholePush) -> Judgement | None:
    step, following = push.gradient_step, saved.gradient_step + 1
    if step > warmup_steps:
        raise InvalidRequest(
            f"gradient_step: {step} where the synchronous phase has {warmup_steps}; "
            "offer PARAMETERS."
        )
    if (ended := _of_another_phase(saved, push)) is not None:
        return ended
    if step < following:
        return stale(f"gradient step {step} has closed", step)
    if step > following:
        if saved.phase and push.phase is None:
            return stale(f"gradient step {step} is of a phase that has ended", step)
        raise InvalidRequest(f"gradient_step: {step} where {following} is next.")
    return None


def _of_another_phase(saved: Saved, push: WholePush) -> Judgement | None:
    """STALE for what was trained in another synchronous phase than the one that goes on."""
    if push.phase is None or push.phase == saved.phase:
        return None
    why = f"the synchronous phase is number {saved.phase}, not {push.phase}"
    return stale(why, push.gradient_step or 1)
