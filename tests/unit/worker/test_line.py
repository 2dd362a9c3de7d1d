"""Who may begin to send: a few at a time, in order; and nobody holds the others up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Semaphore

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.core.line import Line, Turn
from syncline.line import PushLine
from syncline_proto.errors import Unreachable
from syncline_testing.waiting import wait_until

IDLE_S = 1.0


def begun(line: Line, places: range, now_s: float) -> dict[int, Turn]:
    """Those who get a turn now, whatever order they ask in."""
    turns = {place: line.begin(place, now_s) for place in reversed(places)}
    turns |= {place: line.begin(place, now_s) for place in places if turns[place] is None}
    return {place: turn for place, turn in turns.items() if turn is not None}


def line_of(count: int, width: int) -> Line:
    line = Line(width, IDLE_S)
    for place in range(count):
        line.join(place)
    return line


def begun_line(count: int, width: int) -> tuple[Line, dict[int, Turn]]:
    """A line of so many, and the turns of those who began at once."""
    line = line_of(count, width)
    return line, begun(line, range(count), 0.0)


def test_the_first_begin_and_one_more_for_each_that_has_sent() -> None:
    line, first = begun_line(6, 2)
    assert sorted(first) == [0, 1]
    assert not begun(line, range(2, 6), 0.5)
    line.end(first[1])
    assert sorted(begun(line, range(2, 6), 0.5)) == [2]


def test_who_comes_back_goes_ahead_of_those_who_were_begun_later() -> None:
    line, first = begun_line(4, 1)
    line.end(first[0])
    line.join(0)
    assert sorted(begun(line, range(4), 0.25)) == [0]


def test_while_anything_moves_nobody_is_passed_over() -> None:
    line, first = begun_line(4, 2)
    line.move(first[1], 0.5)
    assert not begun(line, range(2, 4), 1.25)
    assert sorted(begun(line, range(2, 4), 1.5)) == [2, 3]


def test_who_moves_again_counts_again() -> None:
    line, first = begun_line(6, 2)
    second = begun(line, range(2, 6), 1.0)
    line.move(first[0], 1.25)
    line.end(second[2])
    assert not begun(line, range(4, 6), 1.5)
    line.end(second[3])
    assert sorted(begun(line, range(4, 6), 1.5)) == [4]


def test_a_turn_that_is_over_says_nothing_any_more() -> None:
    line, first = begun_line(2, 1)
    line.end(first[0])
    line.join(0)
    (new,) = begun(line, range(2), 0.25).values()
    line.move(first[0], 0.75)
    line.end(first[0])
    assert line.begin(1, 1.0) is None  # the new turn still counts
    assert line.begin(1, 1.25) is not None  # and what the old one said did not
    line.end(new)


@given(st.integers(1, 40), st.integers(1, 5))
def test_however_many_wait_for_room_everybody_begins(count: int, width: int) -> None:
    line, waiting, rounds = line_of(count, width), set(range(count)), 0
    while waiting:
        new = begun(line, range(count - len(waiting), count), rounds * IDLE_S)
        assert sorted(new) == sorted(waiting)[:width]
        waiting -= set(new)
        rounds += 1


def test_when_the_line_is_closed_nobody_waits_on() -> None:
    line = PushLine(1, 60.0)
    with line.turn(line.join()):
        second = line.join()
        line.close()
        with pytest.raises(Unreachable), line.turn(second):
            pass


class Compared(int):
    """A place that knows how often it was looked at."""

    looks = 0

    def __lt__(self, other: int) -> bool:
        Compared.looks += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Compared.looks += 1
        return int(self) > int(other)


def test_a_turn_costs_no_more_where_thousands_wait() -> None:
    line = Line(4, IDLE_S)
    places = [Compared(place) for place in range(4096)]
    for place in places:
        line.join(place)
    Compared.looks = 0
    for place in places:
        turn = line.begin(place, 0.0)
        assert turn is not None
        line.end(turn)
    assert Compared.looks <= len(places) * 20


def test_only_the_first_of_those_who_wait_look_whether_it_is_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting, width, looks = 200, 4, 0

    class Counted(Line):
        def begin(self, place: int, now_s: float) -> Turn | None:
            nonlocal looks
            looks += 1
            return super().begin(place, now_s)

    monkeypatch.setattr("syncline.line.Line", Counted)
    line, begun, may_end = PushLine(width, 60.0), SimpleQueue[int](), Semaphore(0)

    def push(number: int) -> None:
        with line.turn(line.join()):
            begun.put(number)
            may_end.acquire()

    with ThreadPoolExecutor(waiting) as pool:
        done = [pool.submit(push, number) for number in range(waiting)]
        wait_until(lambda: looks >= waiting, 30.0, "all have looked once")
        for _ in range(waiting):
            begun.get()
            may_end.release()
        for one in done:
            one.result()
    assert looks <= waiting * (2 * width + 2)
