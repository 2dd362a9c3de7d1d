"""Memory that is used again: taken once at a time, kept while it is needed, and let go of."""

from __future__ import annotations

import numpy as np

from syncline.rooms import Rooms


def test_a_room_that_was_given_back_is_the_next_of_its_size() -> None:
    rooms = Rooms()
    first = rooms.take(100)
    assert first.size == 100 and first.dtype == np.uint8
    rooms.give_back(first)
    assert rooms.idle_bytes == 100
    assert not np.shares_memory(rooms.take(200), first)
    again = rooms.take(100)
    assert np.shares_memory(again, first)
    assert not np.shares_memory(rooms.take(100), first), "it is somebody's"


def test_a_room_comes_back_from_what_was_seen_in_it() -> None:
    rooms = Rooms()
    room = rooms.take(100)
    rooms.give_back(room.view(np.float32).view(np.uint8))
    assert np.shares_memory(rooms.take(100), room)


def test_what_a_round_did_not_take_is_let_go_of_after_it() -> None:
    rooms = Rooms()
    three = [rooms.take(10) for _ in range(3)]
    for room in three:
        rooms.give_back(room)
    rooms.trim()
    assert rooms.idle_bytes == 30, "what has just come back may be needed"
    rooms.give_back(rooms.take(10))
    rooms.trim()
    assert rooms.idle_bytes == 10
    rooms.trim()
    assert rooms.idle_bytes == 0


def test_a_room_of_nothing_is_nobodys() -> None:
    rooms = Rooms()
    rooms.give_back(rooms.take(0))
    assert rooms.idle_bytes == 0
