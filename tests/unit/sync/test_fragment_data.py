"""What a fragment remembers of leased data: all that its pushes were trained on, and what for."""

from __future__ import annotations

import pytest

from syncline_proto.errors import InvalidRequest
from syncline_proto.ranges import NOTHING, Range, Ranges
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import refusals
from syncline_sync.core.record import ClosedBy, Kind
from syncline_sync.saved import saved_from_json, saved_to_json
from syncline_testing.world import World

FIRST, SECOND, THIRD = (Range(0, 0, 4),), (Range(0, 4, 8),), (Range(1, 0, 2),)


def test_what_was_accepted_adds_up_and_what_was_not_is_kept_apart() -> None:
    w = World("a", "b", penalty={"norm_max": 5.0})
    w.push("a", data=FIRST)
    w.push("b", data=THIRD, norm=50.0)
    assert w.closes(ClosedBy.EVERYONE).saved.trained == FIRST
    w.push("a", data=SECOND)
    w.push("b")
    saved = w.closes(ClosedBy.EVERYONE).saved
    assert (saved.trained, saved.excluded) == ((Range(0, 0, 8),), THIRD)
    assert [one.data for one in saved.contributions] == [SECOND, NOTHING]


def test_a_late_push_adds_nothing_before_it_comes_again() -> None:
    w = World("a", "b")
    w.round("a", "b")
    assert w.push("a", base=0, data=FIRST).verdict == pb.VERDICT_STALE
    w.push("a", data=(*FIRST, *THIRD))
    w.push("b")
    assert w.closes(ClosedBy.EVERYONE).saved.trained == (*FIRST, *THIRD)


def test_mean_gradients_name_their_data_and_offers_have_none() -> None:
    w = World("a", "b", warmup_steps=1)
    w.gradient("a", 1, data=FIRST)
    w.gradient("b", 1, data=SECOND)
    assert w.closes(ClosedBy.EVERYONE).saved.trained == (Range(0, 0, 8),)
    w.push("a", kind=Kind.PARAMETERS, base=0, data=THIRD)
    w.core.keep_offer()
    assert w.closes(ClosedBy.OFFER).saved.trained == (Range(0, 0, 8),)


def test_it_outlasts_a_restart_and_another_run_begins_with_it() -> None:
    w = World("a", "b")
    w.push("a", data=FIRST)
    w.push("b", data=SECOND)
    saved = w.closes(ClosedBy.EVERYONE).saved
    assert saved_from_json(saved_to_json(saved)) == saved
    assert saved.restored().trained == (Range(0, 0, 8),)


def apart(*starts: int) -> Ranges:
    return tuple(Range(0, start, start + 1) for start in starts)


@pytest.mark.parametrize("norm", [1.0, 50.0], ids=["trained", "excluded"])
def test_it_stays_few_ranges_and_what_adds_to_them_is_taken(
    norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "KEPT_RANGES_MAX", 4)
    w = World("a", "b", penalty={"norm_max": 5.0})
    w.push("a", data=apart(0, 10), norm=norm)
    w.push("b")
    w.closes(ClosedBy.EVERYONE)
    w.push("a", data=apart(20, 30), norm=norm)
    with pytest.raises(InvalidRequest, match="5 ranges"):
        w.push("b", data=apart(40))
    w.push("b", data=apart(1, 11, 31))
    saved = w.closes(ClosedBy.EVERYONE).saved
    assert len(saved.trained) + len(saved.excluded) == (4 if norm == 1.0 else 7)
    with pytest.raises(InvalidRequest, match="ranges"):
        w.push("a", data=apart(50, 60), norm=norm)
    assert not w.core.is_open, "nothing of it has counted"
