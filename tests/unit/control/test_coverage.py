"""How far a run has come, and what a ledger makes of fragments' words, against plain positions."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from syncline_control.core.coverage import EpochCounts, counts, finished
from syncline_control.core.ledger import Ledger, Push
from syncline_control.core.spans import Life
from syncline_proto.ranges import Range, joined, without
from syncline_proto.stretches import Stretches, added

SIZES = st.integers(1, 4)
"""Of an epoch; with one sequence each range ends where its epoch does."""

LIFE = Life("a", 1)


def read(length: int) -> st.SearchStrategy[list[Range]]:
    """What went into pushes, of data that had so many sequences."""
    one = st.builds(
        lambda epoch, start, more: Range(epoch, start, start + more),
        st.integers(0, 5),
        st.integers(0, length - 1),
        st.integers(1, length),
    )
    return st.lists(one, max_size=9)


KNOWN = st.integers(1, 5).flatmap(lambda length: st.tuples(read(length), read(length)))
"""What a fragment has: trained, and excluded; perhaps of a dataset of another size."""


def told(known: tuple[list[Range], list[Range]]) -> tuple[Stretches, Stretches]:
    """Nothing is both."""
    trained = joined(known[0])
    return added((), trained), added((), without(joined(known[1]), trained))


def places(stretches: Stretches, size: int) -> set[int]:
    """On the track of a dataset of that size, as far as it has any."""
    return {
        epoch * size + at
        for one in stretches
        for epoch in range(one.epoch, one.until)
        for at in range(one.start, min(one.stop, size))
    }


def plain(*ranges: Range) -> set[int]:
    return {at for _, start, stop in ranges for at in range(start, stop)}


def part(whole: set[int], epoch: int, size: int) -> int:
    return len(whole & {*range(epoch * size, (epoch + 1) * size)})


@given(SIZES, st.lists(KNOWN, min_size=1, max_size=3))
def test_a_new_ledger_makes_of_what_fragments_tell_what_plain_sets_make(
    size: int, words: list[tuple[list[Range], list[Range]]]
) -> None:
    """Done is what all of them have: trained if any of them counts it."""
    ledger, known = Ledger(size, len(words)), [told(word) for word in words]
    for fragment, (trained, excluded) in enumerate(known):
        ledger.stands(1 << fragment, trained, excluded, 0.0)
    counted = [places(trained, size) for trained, _ in known]
    whole = [
        one | places(excluded, size) for one, (_, excluded) in zip(counted, known, strict=True)
    ]
    done, ever = set.intersection(*whole), set.union(*whole)
    assert plain(*ledger.done.trained) == done & set.union(*counted)
    assert plain(*ledger.done.excluded) == done - set.union(*counted)
    assert ledger.next == max(ever, default=-1) + 1
    assert plain(*(span.range for span in ledger.spans)) == {*range(ledger.next)} - done
    assert joined(ledger.done.trained) == ledger.done.trained
    lacking = next(at for at in range(ledger.next + 1) if at not in done)
    assert ledger.epoch == lacking // size


@given(SIZES, KNOWN, KNOWN, st.integers(0, 9), st.integers(1, 9))
def test_epochs_are_counted_and_told_as_plain_sets_of_positions_are(
    size: int, first: Any, then: Any, want: int, newest: int
) -> None:
    """One fragment, that tells twice: the second time it may have lost some, and have more."""
    ledger = Ledger(size, 1)
    ledger.stands(1, *told(first), 0.0)
    before = ledger.done
    ledger.stands(1, *told(then), 0.0)
    ledger.see_lives({}, 1.0, 0.0)
    ledger.grant(LIFE, 1, want)
    done = ledger.done
    trained, excluded = plain(*done.trained), plain(*done.excluded)
    held = plain(*(span.range for span in ledger.spans if span.life))
    assert len(held) == want
    begun = -(-ledger.next // size)
    meant: list[EpochCounts] = []
    for epoch in range(begun)[-newest:]:
        a, b, c = (part(one, epoch, size) for one in (trained, excluded, held))
        meant.append(EpochCounts(epoch, a, b, c, size - a - b - c))
    assert counts(ledger, newest) == meant
    was = plain(*before.trained, *before.excluded)
    ends = finished(ledger, before)
    assert [epoch for one in ends for epoch in range(one.epoch, one.until)] == [
        epoch
        for epoch in range(begun)
        if part(trained | excluded, epoch, size) == size > part(was, epoch, size)
    ]
    assert all(one.until < two.epoch for one, two in zip(ends, ends[1:], strict=False))
    for one in ends:
        epochs = range(one.epoch, one.until)
        assert one.trained == sum(part(trained, epoch, size) for epoch in epochs)
        assert one.excluded == sum(part(excluded, epoch, size) for epoch in epochs)


def test_a_push_up_to_the_end_of_an_epoch_begins_no_other() -> None:
    ledger = Ledger(3, 1)
    data = ledger.grant(LIFE, 1, 6)
    assert data == (Range(0, 0, 3), Range(1, 0, 3))
    before = ledger.done
    ledger.cover([Push(1, data, True, LIFE)], 0.0)
    assert (ledger.next, ledger.epoch, ledger.spans) == (6, 2, [])
    assert [one[:2] for one in counts(ledger, 9)] == [(0, 3), (1, 3)]
    assert finished(ledger, before) == [(0, 2, 6, 0)]
    assert ledger.grant(LIFE, 2, 1) == (Range(2, 0, 1),)
