"""Sets of ranges against Python's own sets of positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_proto import ranges
from syncline_proto.errors import InvalidRequest
from syncline_proto.ranges import Range, Ranges

Positions = set[tuple[int, int]]


@st.composite
def loose(draw: st.DrawFn) -> list[Range]:
    """Ranges in any order, that may overlap, touch or be empty."""
    starts = st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 9))
    return [Range(e, start, start + size) for e, start, size in draw(st.lists(starts, max_size=8))]


def positions(of: list[Range] | Ranges) -> Positions:
    return {(epoch, at) for epoch, start, stop in of for at in range(start, stop)}


@given(loose(), loose())
def test_they_are_sets(one: list[Range], other: list[Range]) -> None:
    a, b = ranges.joined(one), ranges.joined(other)
    assert positions(ranges.joined(a, b)) == positions(one) | positions(other)
    assert positions(ranges.without(a, b)) == positions(one) - positions(other)
    assert positions(ranges.common(a, b)) == positions(one) & positions(other)
    assert ranges.count(a) == len(positions(one))


@given(loose(), loose())
def test_equal_sets_are_equal_values(one: list[Range], other: list[Range]) -> None:
    a, b = ranges.joined(one), ranges.joined(other)
    for found in (ranges.joined(a, b), ranges.without(a, b), ranges.common(a, b)):
        assert found == ranges.joined([Range(e, at, at + 1) for e, at in positions(found)])
        ranges.check(found, "data")


@given(loose(), st.integers(0, 60))
def test_split_cuts_off_the_first(given_: list[Range], first: int) -> None:
    whole = ranges.joined(given_)
    head, rest = ranges.split(whole, first)
    assert ranges.count(head) == min(first, ranges.count(whole))
    assert (*positions(head), *positions(rest)).__len__() == ranges.count(whole)
    assert ranges.joined(head, rest) == whole
    assert not head or not rest or max(positions(head)) < min(positions(rest))


@pytest.mark.parametrize(
    "wrong",
    [
        [Range(0, 3, 3)],
        [Range(0, 5, 4)],
        [Range(-1, 0, 1)],
        [Range(0, 0, ranges.POSITION_MAX + 1)],
        [Range(0, 0, 2), Range(0, 2, 3)],
        [Range(1, 0, 2), Range(0, 0, 2)],
        [Range(0, 2 * at, 2 * at + 1) for at in range(ranges.RANGES_MAX + 1)],
    ],
)
def test_what_is_no_set_of_ranges_is_refused(wrong: list[Range]) -> None:
    with pytest.raises(InvalidRequest, match="^data"):
        ranges.check(wrong, "data")
