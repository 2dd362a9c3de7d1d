"""A pace is of tokens over the time that training took, however heartbeats fall."""

from __future__ import annotations

import pytest

from syncline.pace import Pace
from syncline_proto.rest import Progress


def paces(*beats: tuple[int, float]) -> list[float | None]:
    pace = Pace()
    return [pace.of(Progress(tokens=tokens, wall_s=seconds)) for tokens, seconds in beats]


def test_the_pace_is_the_tokens_between_heartbeats_over_their_time() -> None:
    assert paces((0, 0.0), (0, 1.0), (200, 2.0), (500, 5.0)) == [None, None, 100.0, 100.0]


def test_it_forgets_what_is_long_past() -> None:
    slow = [(10 * n, float(n)) for n in range(60)]
    fast = [(590 + 1000 * n, 59.0 + n) for n in range(1, 60)]
    assert paces(*slow)[-1] == 10.0
    assert paces(*slow, *fast)[-1] == 1000.0


def test_between_two_long_steps_it_stays_what_it_was() -> None:
    long = [(100 * (second // 50), float(second)) for second in range(200)]
    assert paces(*long)[50:] == [2.0] * 150


def test_joining_does_not_count() -> None:
    assert paces((0, 40.0), (100, 1.0), (300, 2.0)) == [None, None, 200.0]


@pytest.mark.parametrize("tokens", [0, 70])
def test_who_trains_nothing_has_none(tokens: int) -> None:
    assert paces(*((tokens, float(second)) for second in range(90)))[-1] is None
