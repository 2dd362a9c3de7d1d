"""What a replica has read goes with a push once, whatever becomes of the steps and of the push."""

from __future__ import annotations

import numpy as np

from syncline.flight import Unpushed
from syncline.payload import Values
from syncline.push import Push
from syncline.ranks import Ranks
from syncline.tokens import Tokens
from syncline_proto.ranges import NOTHING, RANGES_MAX, Range, Ranges, joined
from syncline_proto.v1 import sync_pb2 as pb

FIRST, SECOND = (Range(0, 0, 4),), (Range(0, 4, 8),)


def push(data: Ranges) -> Push:
    return Push(
        fragment=0,
        kind=pb.PUSH_KIND_PSEUDO_GRADIENT,
        payload=Values(np.zeros(1, np.float32), "fp32"),
        first_step=2,
        tokens=10,
        data=data,
    )


def test_what_was_read_is_told_of_once() -> None:
    tokens = Tokens(Ranks())
    tokens.read(FIRST)
    tokens.read(SECOND)
    assert tokens.take_read() == (Range(0, 0, 8),)
    assert tokens.take_read() == NOTHING


def test_dropped_tokens_leave_what_was_read() -> None:
    tokens = Tokens(Ranks())
    tokens.add(7)
    tokens.read(FIRST)
    tokens.drop()
    assert (tokens.take(), tokens.take_read()) == (0, FIRST)


def test_what_is_too_much_for_a_push_goes_with_the_next() -> None:
    tokens = Tokens(Ranks())
    many = tuple(Range(0, 2 * at, 2 * at + 1) for at in range(RANGES_MAX + 3))
    tokens.read(many)
    taken = tokens.take_read()
    assert len(taken) == RANGES_MAX
    assert joined(taken, tokens.take_read()) == many


def test_a_late_push_is_unpushed_again_with_its_data() -> None:
    held = Unpushed(5, 3, SECOND).after(push(FIRST))
    assert held == Unpushed(2, 13, (Range(0, 0, 8),))


def test_what_the_model_has_lost_of_a_late_push_is_no_progress_and_was_read() -> None:
    held = Unpushed(5, 3, SECOND).after_undone(push(FIRST))
    assert held == Unpushed(5, 3, (Range(0, 0, 8),))


def test_steps_that_are_forgotten_have_read_what_they_read() -> None:
    assert Unpushed(2, 10, FIRST).forgotten(6) == Unpushed(6, 0, FIRST)
