"""The track of all epochs against plain positions, and a ledger of a hundred thousand epochs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_control.core.coverage import Finished, counts, finished
from syncline_control.core.ledger import EPOCHS_AHEAD_MAX, Done, Ledger, Push
from syncline_control.core.spans import Life
from syncline_control.core.track import LENGTH_MAX, PIECES_MAX, Track, reach
from syncline_proto.ranges import RANGES_MAX, Range, count, joined
from syncline_proto.stretches import Stretch

MANY = 100_000
STRETCHES = st.lists(
    st.builds(
        lambda epoch, start, length, epochs: Stretch(epoch, start, start + length, epochs),
        st.integers(0, 6),
        st.integers(0, 5),
        st.integers(1, 6),
        st.integers(1, 4),
    ),
    max_size=6,
)


def sequences(stretches: tuple[Stretch, ...]) -> int:
    return sum((one.stop - one.start) * one.epochs for one in stretches)


@given(STRETCHES, st.integers(1, 7), st.integers(0, 9))
def test_each_position_has_its_place(what: list[Stretch], size: int, last: int) -> None:
    track = Track(size)
    meant = {
        (epoch, at)
        for one in what
        for epoch in range(one.epoch, one.until)
        for at in range(one.start, one.stop)
        if at < size and epoch <= last
    }
    ranges = track.along(what, last)
    assert {divmod(at, size) for _, a, b in ranges for at in range(a, b)} == meant
    assert joined(ranges) == ranges
    by_epoch = tuple(track.epochs(ranges))
    assert joined(by_epoch) == by_epoch, "cut at the ends of epochs alone"
    assert {(epoch, at) for epoch, a, b in by_epoch for at in range(a, b)} == meant
    assert sum(map(track.pieces, ranges)) == len(by_epoch)
    wholes = {epoch for _, a, b in track.wholes(ranges) for epoch in range(a, b)}
    assert wholes == {one.epoch for one in by_epoch if one[1:] == (0, size)}


@given(STRETCHES, st.integers(0, 3), st.integers(1, 3))
def test_how_far_one_epoch_follows_another(what: list[Stretch], since: int, gap: int) -> None:
    begun = {epoch for one in what for epoch in range(one.epoch, one.until)}
    until = since
    while ahead := [epoch for epoch in range(until, until + gap + 1) if epoch in begun]:
        until = ahead[0] + 1
    assert reach(what, since, gap) == until


def test_what_lies_beyond_what_a_table_keeps_is_no_place() -> None:
    size = (1 << 53) - 1
    assert Track(size).along([Range(1 << 50, 0, 1)], LENGTH_MAX) == ()
    assert Track(size).along([Stretch(0, 0, size, 1 << 50)], LENGTH_MAX)[0].stop <= LENGTH_MAX


def test_a_long_run_over_a_small_dataset_is_few_spans_all_along() -> None:
    ledger, life = Ledger(3, 2), Life("a", 1)
    number = most = 0
    while ledger.epoch < 20_000:
        number += 1
        data = ledger.grant(life, number, 3 * RANGES_MAX)
        assert data == tuple(Range(ledger.epoch + at, 0, 3) for at in range(RANGES_MAX))
        ledger.granted(life, number)
        ledger.cover([Push(0b01, data[:100], True, life), Push(0b11, data, True, life)], 0.0)
        most = max(most, len(ledger.spans) + len(ledger.done.trained))
    assert ledger.done == Done((Range(0, 0, ledger.next),))
    assert most <= 2


def test_a_new_database_learns_of_any_number_of_epochs_that_fragments_have() -> None:
    """Whichever tells first; what one of them lacks is given out, and nothing else again."""
    ledger = Ledger(10, 3)
    lacking = (Stretch(0, 0, 10, MANY - 1), Stretch(MANY - 1, 0, 4), Stretch(MANY - 1, 6, 10))
    ledger.stands(0b001, (Stretch(0, 0, 10, MANY),), (), 0.0)
    ledger.stands(0b010, lacking, (), 0.0)
    assert len(ledger.spans) <= 4
    before = ledger.done
    trained = (Stretch(0, 0, 10, 7), Stretch(7, 0, 9), Stretch(8, 0, 10, MANY - 8))
    ledger.stands(0b100, trained, (Stretch(7, 9, 10),), 0.0)
    assert ledger.next == 10 * MANY
    assert finished(ledger, before) == [Finished(0, MANY - 1, 10 * (MANY - 1), 0)]
    ledger.see_lives({}, 0.0, 0.0)
    given_ = ledger.grant(Life("a", 1), 1, 4)
    assert given_ == (Range(MANY - 1, 4, 6), Range(MANY, 0, 2))
    assert [one[1:] for one in counts(ledger, 2)] == [(8, 0, 2, 0), (0, 0, 2, 8)]


def test_one_that_went_back_by_many_epochs_gives_them_back() -> None:
    ledger = Ledger(10, 1)
    ledger.stands(1, (Stretch(0, 0, 10, MANY),), (Stretch(MANY, 0, 5),), 0.0)
    assert ledger.done == Done((Range(0, 0, 10 * MANY),), (Range(0, 10 * MANY, 10 * MANY + 5),))
    ledger.stands(1, (Stretch(0, 0, 10, 2),), (), 0.0)
    assert ledger.done == Done((Range(0, 0, 20),))
    assert ledger.see_lives({}, 0.0, 0.0) == 10 * MANY + 5 - 20
    assert ledger.grant(Life("a", 1), 1, 3) == (Range(2, 0, 3),)


@pytest.mark.parametrize(
    ("trained", "excluded"),
    [
        ([(0, 0, 10, 5), (5, 0, 9, 2), (7, 0, 10, MANY)], [(5, 9, 10, 2)]),
        ([(0, 0, 10, 5), (5, 0, 9, 2), (7, 0, 10, MANY)], []),
        ([(0, 0, 5, 9), (9, 0, 10, MANY - 2)], [(0, 5, 10, 9)]),
    ],
    ids=["one excluded twice", "one lacking twice", "one of two always excluded"],
)
def test_epochs_that_are_alike_in_part_end_nothing(
    trained: list[tuple[int, int, int, int]], excluded: list[tuple[int, int, int, int]]
) -> None:
    """A new database knew of 1,000 epochs behind two of those, and leased the others once more."""
    ledger = Ledger(10, 1)
    good, bad = (tuple(Stretch(*one) for one in kind) for kind in (trained, excluded))
    ledger.stands(1, good, bad, 0.0)
    assert ledger.next == 10 * (MANY + 7)
    assert count(ledger.done.trained) == sequences(good)
    assert count(ledger.done.excluded) == sequences(bad)


def test_parts_of_more_epochs_than_are_kept_are_not_heard_of_and_lose_nothing() -> None:
    """One stretch of a service could fill the memory, and hold up every run for as long."""
    trained, excluded = (Stretch(0, 0, 5, 1 << 50),), (Stretch(0, 5, 10, 1 << 50),)
    ledger = Ledger(10, 1)
    ledger.stands(1, trained, excluded, 0.0)
    assert len(ledger.done.trained) == len(ledger.done.excluded) == PIECES_MAX
    assert ledger.next == 10 * PIECES_MAX
    life, more = Life("a", 1), Range(PIECES_MAX, 0, 5)
    assert ledger.grant(life, 1, 5) == (more,)
    ledger.cover([Push(1, (more,), True, life)], 0.0)
    before = ledger.done
    ledger.stands(1, trained, excluded, 0.0)
    assert ledger.done == before, "what was told push by push is still there"


def test_what_a_fragment_says_of_other_data_goes_no_further_than_that() -> None:
    """Of a dataset that had fewer sequences: no epoch of it is whole here."""
    ledger = Ledger(10, 1)
    ledger.stands(1, (Stretch(0, 0, 9, MANY),), (), 0.0)
    assert len(ledger.done.trained) == PIECES_MAX
    assert ledger.grant(Life("a", 1), 1, 2) == (Range(0, 9, 10), Range(1, 9, 10))


def test_what_is_told_behind_a_gap_is_passed_over() -> None:
    """Whoever pushes may have told a service anything."""
    ledger = Ledger(10, 1)
    far = Stretch(9 + EPOCHS_AHEAD_MAX + 1, 0, 1)
    ledger.stands(1, (Stretch(0, 0, 10, 9), far), (), 0.0)
    assert ledger.done == Done((Range(0, 0, 90),))


def test_however_many_epochs_end_apart_all_are_gone_through_a_few_times() -> None:
    """For each of them once more held up every run, for minutes with 16,384 ranges."""

    class Walked(tuple[Range, ...]):
        times = 0

        def __iter__(self) -> Iterator[Range]:
            Walked.times += 1
            return super().__iter__()

    many = 2_000
    ledger = Ledger(3, 1)
    trained = [Range(0, 6 * at, 6 * at + 2) for at in range(many)]
    excluded = [Range(0, 6 * at + 2, 6 * at + 3 + at % 2) for at in range(many)]
    ledger.done = Done(Walked(trained), Walked(excluded))
    ended = finished(ledger, Done())
    assert ended == [Finished(2 * at, 2 * at + 1, 2, 1) for at in range(many)]
    assert Walked.times < 20
