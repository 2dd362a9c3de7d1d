"""Memory that is used again: taken once at a time, kept while it is needed, and let go of."""

from __future__ import annotations

import weakref

import numpy as np

from syncline.scratch import Scratch


def test_a_room_that_was_given_back_is_the_next_of_its_size() -> None:
    scratch = Scratch()
    first = scratch.take(100)
    assert first.size == 100 and first.dtype == np.uint8
    scratch.give_back(first)
    assert not np.shares_memory(scratch.take(200), first)
    again = scratch.take(100)
    assert np.shares_memory(again, first)
    assert not np.shares_memory(scratch.take(100), first), "it is somebody's"


def test_a_room_comes_back_from_what_was_seen_in_it() -> None:
    scratch = Scratch()
    room = scratch.take(100)
    scratch.give_back(room.view(np.float32).view(np.uint8))
    assert np.shares_memory(scratch.take(100), room)


def test_what_a_round_did_not_take_is_let_go_of_after_it() -> None:
    scratch = Scratch()
    three = [scratch.take(10) for _ in range(3)]
    rooms = [weakref.ref(room) for room in three]
    while three:
        scratch.give_back(three.pop())

    def kept() -> int:
        return sum(room() is not None for room in rooms)

    scratch.trim()
    assert kept() == 3, "what has just come back may be needed"
    scratch.give_back(scratch.take(10))
    scratch.trim()
    assert kept() == 1
    scratch.trim()
    assert kept() == 0


def test_a_room_of_nothing_is_nobodys() -> None:
    scratch = Scratch()
    room = weakref.ref(nothing := scratch.take(0))
    scratch.give_back(nothing)
    del nothing
    assert room() is None


class Point:
    """Of a device that is there once somebody has waited for it."""

    def __init__(self) -> None:
        self.waited = False

    def wait(self) -> None:
        raise AssertionError("no device is told anything")

    def query(self) -> bool:
        return self.waited

    def synchronize(self) -> None:
        self.waited = True


def test_what_a_device_still_copies_is_taken_only_where_nothing_else_is_left() -> None:
    scratch, points = Scratch(), [Point(), Point()]
    free, *busy = [scratch.take(10) for _ in range(3)]
    scratch.give_back(free)
    for room, point in zip(busy, points, strict=True):
        scratch.give_back(room, point)
    assert np.shares_memory(scratch.take(10), free) and not any(p.waited for p in points)
    assert np.shares_memory(scratch.take(10), busy[0]), "the longest under way"
    assert points[0].waited and not points[1].waited
