"""The data's ledger stays small: whoever asks, and whatever pushes name."""

from __future__ import annotations

from syncline_control.core.ledger import Done, Ledger, Push
from syncline_control.core.shares import HELD_LEAST, HELD_MAX, SPANS_MAX
from syncline_control.core.spans import Life, Span
from syncline_proto.ranges import NOTHING, Range


def test_what_nobody_can_have_read_is_passed_over() -> None:
    ledger = Ledger(10, 1)
    ledger.cover([Push(1, (Range(0, 8, 40), Range(5_000, 0, 3)), True)], 0.0)
    assert ledger.done == Done((Range(0, 8, 10),))
    assert [span.range for span in ledger.spans] == [Range(0, 0, 8)]


def test_pushes_that_name_far_epochs_do_not_carry_one_another_further() -> None:
    """Of what was never given out; what was, is taken however far it is."""
    ledger = Ledger(10, 1)
    for ahead in (900, 1_800, 2_700):
        ledger.cover([Push(1, (Range(ahead, 0, 1),), True)], 0.0)
    assert ledger.next == 9_001
    far = Ledger(10, 1, 50_000, [Span(Range(0, 30, 31)), Span(Range(0, 40_000, 40_010))])
    far.cover([Push(1, (Range(4_000, 0, 10),), True)], 0.0)
    assert far.done == Done((Range(0, 40_000, 40_010),))


def test_who_only_asks_is_given_no_more_than_it_may_hold() -> None:
    """Of a tiny dataset each sequence is a piece, as an epoch has no more; nor does a new life
    begin anew. Who shares the run has a little in any case."""
    ledger = Ledger(1, 1)
    for number in range(1, 12):
        given = ledger.grant(Life("a", 1 + number // 6), number, 1 << 24)
        assert bool(given) == (number <= 4)
    assert ledger.next == HELD_MAX
    assert len(ledger.grant(Life("b", 1), 1, 1 << 24, SPANS_MAX)) == HELD_LEAST
    assert not ledger.grant(Life("b", 1), 2, 1, SPANS_MAX)
    done = ledger.granted(Life("a", 1), 0)[1][:9]
    ledger.cover([Push(1, done, True, Life("a", 1))], 0.0)
    assert len(ledger.grant(Life("a", 2), 12, 1 << 24)) == len(done)


def test_what_was_heard_is_one_piece_however_often_it_was_asked_for() -> None:
    ledger = Ledger(1_000, 1)
    for number in range(1, 101):
        assert ledger.granted(Life("a", 1), number - 1) == (number - 1, NOTHING)
        ledger.grant(Life("a", 1), number, 2)
    assert [span.range for span in ledger.spans] == [Range(0, 0, 198), Range(0, 198, 200)]
    assert ledger.granted(Life("a", 1), 99) == (100, (Range(0, 198, 200),)), "again, if unheard"
