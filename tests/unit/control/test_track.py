"""The track of all epochs against plain positions, and a ledger of a hundred thousand epochs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syncline_control.core.coverage import Finished, counts, finished
from syncline_control.core.ledger import EPOCHS_AHEAD_MAX, Done, Ledger, Push
from syncline_control.core.spans import Life
from syncline_control.core.track import LENGTH_MAX, Track
from syncline_proto.ranges import RANGES_MAX, Range, joined
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


@given(STRETCHES)
def test_how_far_all_is_there(what: list[Stretch]) -> None:
    """Of epochs that are said together only if each has all of it."""
    track, plain = Track(6), [one._replace(epochs=1) for one in what]
    whole = {one.epoch for one in track.epochs(track.along(plain, 9)) if one[1:] == (0, 6)}
    assert track.reach(plain) == next(epoch for epoch in range(99) if epoch not in whole)
    assert track.reach([Stretch(0, 0, 6, MANY), *[one for one in what if one.stop < 6]]) >= MANY


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


def test_what_a_fragment_says_of_other_data_goes_no_further_than_before() -> None:
    """Of a dataset that had fewer sequences: no epoch of it is whole here."""
    ledger = Ledger(10, 1)
    ledger.stands(1, (Stretch(0, 0, 9, MANY),), (), 0.0)
    assert len(ledger.done.trained) == EPOCHS_AHEAD_MAX + 1
    assert ledger.grant(Life("a", 1), 1, 2) == (Range(0, 9, 10), Range(1, 9, 10))
