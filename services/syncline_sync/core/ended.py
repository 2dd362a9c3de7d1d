"""What a fragment knows once a round has ended: its next record, from the one before and the round.

Pure. Who is still waited for, and whether a round may end, the fragment decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from syncline_proto.merging import OuterSettings
from syncline_proto.settings import RunSettings
from syncline_proto.stretches import added
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import detector
from syncline_sync.core.record import ClosedBy, Closing, Kind, LastPush, Saved, remembered
from syncline_sync.core.round import Round
from syncline_sync.core.window import Carry, guarded, of_window


def after(
    before: Saved,
    round_: Round,
    settings: RunSettings,
    members: Mapping[str, int],
    taking_part: Mapping[str, int],
) -> tuple[Saved, tuple[str, ...]]:
    """Return what to store with the round's result, and what is worth telling.

    ``members`` and ``taking_part`` (replica -> incarnation) are those at the round's end.
    """
    contributions = round_.contributions()
    statistics, told = before.statistics, ()
    if round_.kind is Kind.PSEUDO_GRADIENT:
        seen = [
            detector.Seen(
                c.replica, c.norm, c.inner_steps, c.verdict == pb.VERDICT_ANOMALOUS, c.age
            )
            for c in contributions
        ]
        statistics, told = detector.closed(statistics, settings.penalty, seen, taking_part)
    last = dict(before.last)
    for c in contributions:
        known = last.get(c.replica)
        gaps = settings.age_max > 0
        last[c.replica] = (
            known.after(c, round_.result, gaps) if known else LastPush.of(c, round_.result, gaps)
        )
    window = before.window
    if round_.window is not None:
        window = round_.window.after(
            round_.window.size,
            [
                (c.norm, c.inner_steps, c.age)
                for c in contributions
                if c.verdict == pb.VERDICT_ACCEPTED
            ],
        )
    inside = list(dict.fromkeys(c.replica for c in contributions))
    counted = [c for c in contributions if c.verdict == pb.VERDICT_ACCEPTED]
    gradient = round_.kind is Kind.GRADIENT
    saved = replace(
        before,
        revision=before.revision if gradient else round_.result,
        gradient_step=round_.result if gradient else before.gradient_step,
        committed_tokens=before.committed_tokens + sum(c.tokens for c in counted),
        statistics=replace(statistics, replicas=remembered(statistics.replicas, inside, members)),
        last=remembered(last, inside, members),
        contributions=contributions,
        window=window,
        down=settings.codec.down,
        taking_part=dict(taking_part),
        trained=added(before.trained, *(c.data for c in counted)),
        excluded=added(
            before.excluded, *(c.data for c in contributions if c.verdict == pb.VERDICT_ANOMALOUS)
        ),
    )
    return saved, told


def closing_of(
    before: Saved,
    r: Round,
    closed_by: ClosedBy,
    settings: RunSettings,
    saved: Saved,
    told: tuple[str, ...],
    told_of_run: tuple[str, ...],
) -> Closing:
    """What is to be computed, kept and told of a round that ends, which led to ``saved``.

    ``settings`` are the round's.
    """
    outer, carry = _outer(before, r, settings)
    return Closing(
        kind=r.kind,
        closed_by=closed_by,
        total_weight=r.total,
        outer=outer,
        carry=carry,
        direction_scale=_direction_scale(r, outer, carry),
        saved=saved,
        opened_s=r.opened_s,
        effective_sample_size=effective_sample_size(r),
        # What a run begins with has nothing to go back to: offers and mean gradients come first.
        behind=r.kind is Kind.PSEUDO_GRADIENT and settings.durability == "async",
        told=told,
        told_of_run=told_of_run,
    )


def effective_sample_size(round_: Round) -> float | None:
    """How many pushes of equal weight the round's come to; None if none counts."""
    weights = [c.weight for c in round_.contributions()]
    squares = sum(weight**2 for weight in weights)
    return sum(weights) ** 2 / squares if squares else None


def _outer(before: Saved, r: Round, settings: RunSettings) -> tuple[OuterSettings, Carry | None]:
    """What the outer step of a round that ends is to do."""
    outer, window = settings.outer, r.window
    if window is not None:
        accepted = sum(c.verdict == pb.VERDICT_ACCEPTED for c in r.entries.values())
        bounded = of_window(guarded(outer, window.age), window.size)
        return bounded, window.carry(accepted, window.size, outer)
    every = outer.restart_every
    if every is None or before.revision % every:
        return outer, None
    return outer, Carry(0.0, outer.momentum)


def _direction_scale(r: Round, outer: OuterSettings, carry: Carry | None) -> float | None:
    """As in ``Closing``. A momentum that is forgotten has no direction to compare with."""
    forgets = carry is not None and carry.keep == 0.0
    has_sum = r.kind is Kind.PSEUDO_GRADIENT and r.total > 0.0
    if forgets or not (has_sum and outer.direction.enabled):
        return None
    # A push that is a round counts as a part of its window, and is compared at its own length.
    return (r.window.size if r.window else 1) / r.total
