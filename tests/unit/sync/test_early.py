"""What a push is told before its values come in: the same as it would be told then."""

from __future__ import annotations

import math

import pytest

from syncline_proto.errors import InvalidRequest
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import Judgement, Kind
from syncline_testing.phases import Phase
from syncline_testing.pure import whole_push
from syncline_testing.world import World

FENCED, DUPLICATE, STALE = pb.VERDICT_FENCED, pb.VERDICT_DUPLICATE, pb.VERDICT_STALE
ANSWERED = Judgement(verdict=DUPLICATE, result=7)


@pytest.mark.parametrize(
    ("incarnation", "seq", "epoch", "verdict"),
    [(2, 9, 1, FENCED), (2, 1, 9, FENCED), (1, 1, 9, DUPLICATE), (1, 9, 9, STALE), (1, 9, 1, None)],
)
def test_it_is_what_the_whole_push_is_told(
    incarnation: int, seq: int, epoch: int, verdict: int | None
) -> None:
    w = World("a", "b")
    w.round("a", "b")
    life = "b", incarnation
    early = w.core.early(w.members, *life, seq, Kind.PSEUDO_GRADIENT, epoch)
    assert (early and early.verdict) == verdict
    push = whole_push("b", incarnation=incarnation, seq=seq, epoch=epoch, base=1)
    judged = w.core.judge(0.0, push)
    assert judged == early if early else judged.verdict == pb.VERDICT_ACCEPTED


def test_who_has_lost_its_lease_hears_that_before_what_it_was_told_once() -> None:
    w = World("a", "b")
    w.round("a", "b")
    how = 1, 1, Kind.PSEUDO_GRADIENT, 9, ANSWERED
    assert w.core.early(w.members, "a", *how) == ANSWERED, "it says more than a round does"
    fenced = w.core.early({"b": 1}, "a", *how)
    assert fenced is not None and fenced.verdict == FENCED, "as of members that are yet to be heard"


@pytest.mark.parametrize("norm", [1.0, math.nan])
def test_first_parameters_that_name_a_base_are_refused_for_that(norm: float) -> None:
    """Else their sender would wait for who has offered others, and nobody has."""
    members = {"a": 1}
    core = Fragment(RunSettings())
    core.adopt(0.0, members, RunSettings(), True, members)
    with pytest.raises(InvalidRequest, match="base_revision: 0 where nobody has offered"):
        core.judge(0.0, whole_push("a", kind=Kind.PARAMETERS, base=0, norm=norm))
    offered = core.judge(0.0, whole_push("a", seq=2, kind=Kind.PARAMETERS, base=None))
    assert offered.verdict == pb.VERDICT_ACCEPTED


@pytest.mark.parametrize("kind", [Kind.GRADIENT, Kind.PARAMETERS, None])
def test_what_has_no_base_is_not_refused_for_its_epoch_before_it_is_whole(
    kind: Kind | None,
) -> None:
    w = Phase("a", "b")
    assert w.core.early(w.members, "b", 1, 1, kind, 9) is None
    if kind is Kind.GRADIENT:
        assert w.gradient("b", 1, epoch=9).verdict == STALE
