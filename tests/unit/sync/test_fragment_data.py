"""What a fragment remembers of leased data: all that its pushes were trained on, and what for."""

from __future__ import annotations

import json

import pytest

from syncline_proto.errors import InvalidRequest
from syncline_proto.ranges import NOTHING, RANGES_MAX, Range, Ranges, count
from syncline_proto.stretches import Stretch
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import refusals
from syncline_sync.core.fragment import Fragment
from syncline_sync.core.record import ClosedBy, Kind, Saved
from syncline_sync.saved import check_numbers, saved_from_json, saved_to_json
from syncline_testing.pure import whole_push
from syncline_testing.spread import spread
from syncline_testing.world import World, rules

FIRST, SECOND, THIRD = (Range(0, 0, 4),), (Range(0, 4, 8),), (Range(1, 0, 2),)


def test_what_was_accepted_adds_up_and_what_was_not_is_kept_apart() -> None:
    w = World("a", "b", penalty={"norm_max": 5.0})
    w.push("a", data=FIRST)
    w.push("b", data=THIRD, norm=50.0)
    assert spread(w.closes(ClosedBy.EVERYONE).saved.trained) == FIRST
    w.push("a", data=SECOND)
    w.push("b")
    saved = w.closes(ClosedBy.EVERYONE).saved
    assert (spread(saved.trained), spread(saved.excluded)) == ((Range(0, 0, 8),), THIRD)
    assert [one.data for one in saved.contributions] == [SECOND, NOTHING]


def test_a_late_push_adds_nothing_before_it_comes_again() -> None:
    w = World("a", "b")
    w.round("a", "b")
    assert w.push("a", base=0, data=FIRST).verdict == pb.VERDICT_STALE
    w.push("a", data=(*FIRST, *THIRD))
    w.push("b")
    assert spread(w.closes(ClosedBy.EVERYONE).saved.trained) == (*FIRST, *THIRD)


def test_mean_gradients_name_their_data_and_offers_have_none() -> None:
    w = World("a", "b", warmup_steps=1)
    w.gradient("a", 1, data=FIRST)
    w.gradient("b", 1, data=SECOND)
    assert spread(w.closes(ClosedBy.EVERYONE).saved.trained) == (Range(0, 0, 8),)
    w.push("a", kind=Kind.PARAMETERS, base=0, data=THIRD)
    w.core.keep_offer()
    assert spread(w.closes(ClosedBy.OFFER).saved.trained) == (Range(0, 0, 8),)


def test_it_outlasts_a_restart_and_another_run_begins_with_it() -> None:
    w = World("a", "b")
    w.push("a", data=FIRST)
    w.push("b", data=SECOND)
    saved = w.closes(ClosedBy.EVERYONE).saved
    assert saved_from_json(saved_to_json(saved)) == saved
    assert spread(saved.restored().trained) == (Range(0, 0, 8),)


def test_epochs_without_end_are_taken_if_they_are_read_wholly() -> None:
    """Far beyond as many as it keeps ranges: two replicas read a small dataset together."""
    w = World("a", "b")
    for begin in range(0, 5 * refusals.KEPT_RANGES_MAX, RANGES_MAX):
        epochs = range(begin, begin + RANGES_MAX)
        w.push("a", data=tuple(Range(epoch, 0, 3) for epoch in epochs))
        w.push("b", data=tuple(Range(epoch, 3, 10) for epoch in epochs))
        w.closes(ClosedBy.EVERYONE)
    saved = w.core.saved
    assert saved.trained == (Stretch(0, 0, 10, 5 * refusals.KEPT_RANGES_MAX),)
    assert saved_from_json(saved_to_json(saved)) == saved


def test_a_file_of_ranges_epoch_by_epoch_is_read_and_the_next_push_joins_them() -> None:
    many = refusals.KEPT_RANGES_MAX
    text = json.loads(saved_to_json(Saved(revision=1)))
    text["trained"] = [[epoch, 0, 10] for epoch in range(many)]
    saved = saved_from_json(json.dumps(text))
    check_numbers(saved)
    assert count(spread(saved.trained)) == 10 * many
    core = Fragment(rules(), saved)
    core.adopt(0.0, {"a": 1, "b": 1}, rules(), True)
    for seq, who in enumerate("ab", 1):
        data = (Range(many, 5 * seq - 5, 5 * seq),)
        core.judge(0.0, whole_push(who, seq=1, base=1, data=data))
    assert core.close(ClosedBy.EVERYONE).saved.trained == (Stretch(0, 0, 10, many + 1),)


def test_what_cuts_a_stretch_counts_as_what_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "KEPT_RANGES_MAX", 4)
    w = World("a", "b")
    w.push("a", data=tuple(Range(epoch, 0, 4) for epoch in range(10)))
    w.push("b", data=(Range(20, 0, 4),))
    assert len(w.closes(ClosedBy.EVERYONE).saved.trained) == 2
    with pytest.raises(InvalidRequest, match="5 ranges"):
        w.push("a", data=(Range(5, 6, 7),))
    w.push("a", data=(Range(5, 4, 7),))
    w.push("b")
    assert len(w.closes(ClosedBy.EVERYONE).saved.trained) == 4


def test_a_memory_whose_data_is_no_set_is_told() -> None:
    for wrong in ((Stretch(0, 4, 4),), (Stretch(0, 0, 9, 3), Stretch(2, 0, 1))):
        with pytest.raises(ValueError, match="no set"):
            check_numbers(Saved(trained=wrong))
        with pytest.raises(ValueError, match="no set"):
            check_numbers(Saved(excluded=wrong))


def apart(*starts: int) -> Ranges:
    return tuple(Range(0, start, start + 1) for start in starts)


def test_it_stays_few_ranges_and_what_adds_to_them_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refusals, "KEPT_RANGES_MAX", 4)
    w = World("a", "b")
    w.push("a", data=apart(0, 10))
    w.push("b")
    w.closes(ClosedBy.EVERYONE)
    w.push("a", data=apart(20, 30))
    with pytest.raises(InvalidRequest, match="5 ranges"):
        w.push("b", data=apart(40))
    w.push("b", data=apart(1, 11, 31))
    assert len(w.closes(ClosedBy.EVERYONE).saved.trained) == 4
    with pytest.raises(InvalidRequest, match="ranges"):
        w.push("a", data=apart(50, 60))
    assert not w.core.is_open, "nothing of it has counted"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_who_is_excluded_for_ever_is_refused_and_ends_nobody_else(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made a range each round, and parted what the others had read: then all were refused."""
    monkeypatch.setattr(refusals, "KEPT_RANGES_MAX", 4 * 16)
    monkeypatch.setattr(refusals, "EXCLUDED_RANGES_MAX", 16)
    w = World("a", "b", penalty={"norm_max": 5.0})
    place = refused = 0

    def read(norm: float, who: str) -> None:
        nonlocal place
        epoch, at = divmod(place, size)
        w.push(who, data=(Range(epoch, at, at + 1),), norm=norm)
        place += 1

    for _ in range(100):
        read(1.0, "b")
        try:
            read(50.0, "a")
        except InvalidRequest as error:
            assert "a does not count (" in str(error)
            refused += 1  # others read that
            w.push("a")
        w.closes(ClosedBy.EVERYONE)
    saved = w.core.saved
    assert (refused > 0) == (size != 2), "of two it is always the same one"
    assert len(saved.excluded) <= 16 and len(saved.trained) <= 4 * 16
    assert count(spread(saved.trained)) == 100
    assert count(spread(saved.excluded)) == 100 - refused
