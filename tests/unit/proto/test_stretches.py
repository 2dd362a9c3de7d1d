"""Sets over many epochs against Python's own sets of positions, and how few numbers they take."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from syncline_proto.ranges import Range, joined
from syncline_proto.stretches import MADE_MAX, Stretch, Stretches, added, are_apart
from syncline_testing.spread import spread

SIZE = 4
"""Of an epoch; so short that many are read alike."""

READ = st.builds(
    lambda epoch, start, length: Range(epoch, start, min(SIZE, start + length)),
    st.integers(0, 7),
    st.integers(0, SIZE - 1),
    st.integers(1, SIZE),
)
PUSHES = st.lists(st.lists(READ, max_size=3), max_size=12)


@given(PUSHES)
def test_they_are_the_plain_set_in_whatever_order_it_came(pushes: list[list[Range]]) -> None:
    kept: Stretches = ()
    for number, push in enumerate(pushes):
        before, kept = kept, added(kept, push)
        assert spread(kept) == joined(*pushes[: number + 1])
        assert are_apart(kept)
        assert len(kept) <= len(before) + MADE_MAX * len(push)
    assert added((), *pushes) == kept, "equal sets are equal values"
    assert added((), spread(kept)) == kept


@given(PUSHES)
def test_epochs_that_have_one_range_and_the_same_are_said_once(pushes: list[list[Range]]) -> None:
    kept = added((), *pushes)
    for one, other in zip(kept, kept[1:], strict=False):
        both = (one.epoch, other.epoch)
        alone = all(sum(r.epoch == epoch for r in kept) == 1 for epoch in both)
        assert not (alone and one.until == other.epoch and one[1:3] == other[1:3])
    for one in kept:
        assert one.epochs == 1 or sum(r.epoch == one.epoch for r in kept) == 1


def test_a_hundred_thousand_epochs_that_are_read_wholly_are_one_stretch() -> None:
    dice, epochs, ahead = random.Random(3), 100_000, 5
    kept: Stretches = ()
    most = 0
    for begin in range(0, epochs, ahead):
        halves = [Range(begin + at, s, s + 50) for at in range(ahead) for s in (0, 50)]
        dice.shuffle(halves)
        for number in range(0, len(halves), 5):
            kept = added(kept, halves[number : number + 5])
            most = max(most, len(kept))
    assert kept == (Stretch(0, 0, 100, epochs),)
    assert most <= 1 + ahead
    kept = added(added((), [Range(epochs, 0, 7)]), spread((Stretch(0, 0, 100, 9),)))
    assert kept == (Stretch(0, 0, 100, 9), Stretch(epochs, 0, 7))


READS = TypeAdapter(list[Stretch])


def test_ranges_of_before_are_read_as_stretches_of_one_epoch() -> None:
    assert READS.validate_json("[[3, 0, 9], [4, 0, 9, 2]]", strict=True) == [
        Stretch(3, 0, 9),
        Stretch(4, 0, 9, 2),
    ]
    for wrong in ("[[3, 0]]", "[[3, 0, 9, 0]]", "[[3, 0, 9, 1, 1]]", "[[3, 0, 9, -1]]"):
        with pytest.raises(ValidationError):
            READS.validate_json(wrong, strict=True)


@pytest.mark.parametrize(
    "wrong",
    [
        [Stretch(0, 3, 3)],
        [Stretch(0, 0, 2), Stretch(0, 2, 3)],
        [Stretch(1, 0, 2), Stretch(0, 0, 2)],
        [Stretch(0, 0, 2, 5), Stretch(4, 0, 2)],
        [Stretch(0, 0, 2, 2), Stretch(0, 3, 4, 2)],
        [Stretch(0, 0, 2), Stretch(0, 3, 4, 2)],
    ],
)
def test_what_is_no_set_is_told(wrong: list[Stretch]) -> None:
    assert not are_apart(wrong)
