"""What a round looks like from outside: on the wire for replicas, in REST for the control plane."""

from __future__ import annotations

import math

from syncline_proto.reports import ContributionView, FragmentData, RoundReport
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.merge import Outcome
from syncline_sync.core.record import ClosedBy, Closing, Contribution, Kind, Saved


def round_report(
    fragment: int,
    name: str,
    closing: Closing,
    outcome: Outcome | None,
    seconds: float,
    committed_at: float,
    fragments: int,
) -> RoundReport:
    """The control plane's view of a committed round."""
    return RoundReport(
        fragment=fragment,
        fragment_name=name,
        kind=closing.kind.value,
        revision=closing.saved.revision,
        gradient_step=closing.saved.gradient_step,
        committed_at=committed_at,
        seconds=seconds,
        committed_tokens=closing.saved.committed_tokens,
        closed_by=closing.closed_by.value,
        effective_sample_size=closing.effective_sample_size,
        merged_norm=_finite(outcome.merged_norm) if outcome else None,
        clip_factor=_finite(outcome.clip) if outcome else None,
        momentum_cosine=outcome.cosine if outcome else None,
        contributions=[_view(c) for c in closing.saved.contributions],
        fragments=fragments,
    )


def standing_report(
    fragment: int, name: str, saved: Saved, told_at: float, fragments: int
) -> RoundReport:
    """Where a fragment stands, in the form of a round that set its value."""
    return RoundReport(
        fragment=fragment,
        fragment_name=name,
        kind=Kind.PARAMETERS.value,
        revision=saved.revision,
        committed_at=told_at,
        seconds=0.0,
        committed_tokens=saved.committed_tokens,
        closed_by=ClosedBy.OFFER.value,
        fragments=fragments,
        data=FragmentData(trained=list(saved.trained), excluded=list(saved.excluded)),
    )


def _view(c: Contribution) -> ContributionView:
    return ContributionView(
        replica=c.replica,
        incarnation=c.incarnation,
        verdict="anomalous" if c.verdict == pb.VERDICT_ANOMALOUS else "accepted",
        weight=c.weight,
        norm=_finite(c.norm),
        z=_finite(c.z),
        inner_steps=c.inner_steps,
        tokens=c.tokens,
        reason=c.reason,
        age=c.age,
        data=list(c.data),
    )


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def contributions_of(saved: Saved) -> list[pb.Contribution]:
    """A revision's contributions as the wire has them."""
    return [
        pb.Contribution(
            replica=c.replica,
            incarnation=c.incarnation,
            seq=c.seq,
            verdict=c.verdict,
            weight=c.weight,
            norm=c.norm,
            z=c.z,
            inner_steps=c.inner_steps,
            tokens=c.tokens,
            first_step=c.first_step,
            last_step=c.last_step,
            age=c.age,
        )
        for c in saved.contributions
    ]
