"""Several sync services tell of one run in any order; the data's ledger ends the same.

Each service tells of its own fragments in the order in which it came to it. A synchronous phase
that starts again has forgotten all that was trained in it, also what somebody who lives on takes
for done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_control.core.ledger import Done, Ledger, Push
from syncline_control.core.spans import Life, Span, tidied
from syncline_proto.ranges import Range

A, B, C = Life("a", 1), Life("b", 1), Life("c", 1)
SETTLE_S = 10.0
FIRST, OTHERS, SECOND, UNREAD = (Range(0, at, at + 4) for at in (0, 4, 8, 12))
"""What b read in the old phase, and a, who is gone; what b read in the new one, and will read."""

Told = tuple[Life, Range] | None
"""A push that is committed; or (None) that the fragment has nothing."""
OLD: list[Told] = [(B, FIRST), (A, OTHERS)]
PHASES: list[Told] = [*OLD, None, (B, SECOND)]


def orders(*numbers: int) -> Iterator[list[int]]:
    """Every order of so many of each, as whose turn it is."""
    if len(numbers) == 1:
        yield [0] * numbers[0]
        return
    *before, last = numbers
    places = range(sum(numbers))
    for those in combinations(places, last):
        for rest in orders(*before):
            turns = iter(rest)
            yield [len(before) if at in those else next(turns) for at in places]


class Plane:
    """A ledger of so many fragments, of which a and b were given all that they read."""

    def __init__(self, fragments: int) -> None:
        self.fragments, self.now = fragments, 0.0
        self.ledger = Ledger(16, fragments)
        self.ledger.grant(B, 1, 4)
        self.ledger.grant(A, 1, 4)
        self.ledger.grant(B, 2, 8)
        self.see_lives()

    def see_lives(self, *, is_settled: bool = False) -> None:
        version = 1
        settled = version if is_settled else version - 1
        alive = dict([B, C])
        self.ledger.see_lives(alive, self.now, SETTLE_S, version=version, settled=settled)

    def hear(self, fragment: int, told: Told) -> None:
        until, bit = self.now + SETTLE_S, 1 << fragment
        if told is None:
            self.ledger.stands(bit, (), (), until)
        else:
            life, data = told
            self.ledger.cover([Push(bit, (data,), True, life)], until)
        self.see_lives()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.see_lives()

    def ends(self) -> tuple[list[Span], Done]:
        """Once nothing is open of who is gone, and all has settled."""
        self.see_lives(is_settled=True)
        self.pass_time(SETTLE_S + 1.0)
        spans = [replace(span, folded=False) for span in self.ledger.spans]
        return tidied(spans), self.ledger.done


def told_in(order: Sequence[int], tells: Sequence[Told], plane: Plane) -> None:
    waiting = [iter(tells) for _ in range(plane.fragments)]
    for fragment in order:
        plane.hear(fragment, next(waiting[fragment]))


FREE = Range(0, 0, 8)
BEGUN_ANEW = [Span(FREE), Span(UNREAD, B, 2)], Done((SECOND,))


@pytest.mark.parametrize("fragments", [1, 2])
def test_a_phase_that_starts_again_leaves_the_same_in_every_order(fragments: int) -> None:
    for order in orders(*[len(PHASES)] * fragments):
        plane = Plane(fragments)
        told_in(order, PHASES, plane)
        assert plane.ends() == BEGUN_ANEW, order


@given(st.permutations([0, 1, 2] * len(PHASES)), st.lists(st.floats(0.0, 20.0), max_size=12))
def test_also_of_more_services_and_however_long_it_takes(
    order: list[int], pauses: list[float]
) -> None:
    plane, waiting = Plane(3), [iter(PHASES) for _ in range(3)]
    for at, fragment in enumerate(order):
        plane.hear(fragment, next(waiting[fragment]))
        plane.pass_time(pauses[at] if at < len(pauses) else 0.0)
    assert plane.ends() == BEGUN_ANEW


@given(st.data(), st.permutations([0, 1] * len(PHASES)))
def test_also_where_it_is_told_again(data: st.DataObject, order: list[int]) -> None:
    """A service that saw no answer tells its last reports again, in their order."""
    plane, heard = Plane(2), [0, 0]
    for fragment in order:
        heard[fragment] += 1
        again = data.draw(st.integers(0, heard[fragment] - 1))
        for told in PHASES[again : heard[fragment]]:
            plane.hear(fragment, told)
    assert plane.ends() == BEGUN_ANEW


def test_a_service_that_went_back_while_another_was_not_heard_gives_its_data_back() -> None:
    """Whose push it lost saw it merged, and names it in no other."""
    plane = Plane(2)
    told_in([0, 0, 1], [(B, FIRST), None], plane)
    assert plane.ends()[0][0] == Span(FIRST, covered=0b10)


def test_what_somebody_else_had_pushed_is_lost_to_nobody_who_holds_it_now() -> None:
    plane = Plane(2)
    plane.hear(1, (A, OTHERS))
    plane.see_lives(is_settled=True)
    assert plane.ledger.grant(C, 1, 4) == (OTHERS,)
    plane.hear(1, None)
    plane.pass_time(SETTLE_S + 1.0)
    assert (plane.ledger.spans[1].life, plane.ledger.spans[1].until) == (C, None)
    for fragment in range(2):
        plane.hear(fragment, (C, OTHERS))
    assert plane.ledger.done == Done((OTHERS,))


def test_who_has_lost_a_push_and_is_gone_is_asked_after() -> None:
    """A round may be open that has it again, for any time."""
    plane = Plane(2)
    told_in([0, 0], [(B, FIRST), None], plane)
    plane.ledger.see_lives({}, plane.now, SETTLE_S, version=2, settled=1)
    plane.ledger.see_lives({}, plane.now + 99.0, SETTLE_S, version=2, settled=1)
    assert not plane.ledger.spans[0].is_free
    plane.ledger.see_lives({}, plane.now + 99.0, SETTLE_S, version=2, settled=2)
    assert plane.ledger.spans[0].is_free
