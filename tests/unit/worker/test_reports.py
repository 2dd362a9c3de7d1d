"""What a loop reports is told in its order and once, whenever a GPU comes to it."""

from __future__ import annotations

import threading

import pytest
from torch import Tensor

from syncline import reports
from syncline.reports import PENDING_MAX, Moment, Reports
from syncline_proto.rest import LossPoint


class Late:
    """A figure that is known when the test says so; from GPUs they come so, in their order."""

    known = 0
    """Up to this one."""
    fails = False

    def __init__(self, value: float | Tensor, name: str) -> None:
        self._value = float(value)

    @property
    def is_known(self) -> bool:
        if Late.fails:
            raise RuntimeError("the device has failed")
        return self._value <= Late.known

    def number(self) -> float:
        Late.known = max(Late.known, int(self._value))
        return self._value


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> tuple[Reports, list[LossPoint]]:
    monkeypatch.setattr(reports, "Figure", Late)
    monkeypatch.setattr(Late, "known", 0)
    monkeypatch.setattr(Late, "fails", False)
    points: list[LossPoint] = []
    some = Reports()
    some.points = points.append
    return some, points


def steps_of(points: list[LossPoint]) -> list[int]:
    assert all(point.loss == point.inner_step for point in points)
    return [point.inner_step for point in points]


def test_nothing_is_told_before_it_is_known(told: tuple[Reports, list[LossPoint]]) -> None:
    some, points = told
    for step in range(1, 6):
        some.add({"loss": step, "grad_norm": step + 1}, Moment(10 * step, step))
    assert not (some.said or points)
    Late.known = 4
    some.see()
    assert steps_of(points) == [1, 2, 3]
    assert [point.tokens for point in points] == [10, 20, 30]
    assert some.said == {"loss": 3.0, "grad_norm": 4.0}
    some.finish()
    assert steps_of(points) == [1, 2, 3, 4, 5]


def test_who_is_far_ahead_waits_for_the_oldest(told: tuple[Reports, list[LossPoint]]) -> None:
    some, points = told
    for step in range(1, PENDING_MAX + 4):
        some.add({"loss": step}, Moment(step, step))
    assert steps_of(points) == [1, 2, 3]


def test_threads_that_look_at_once_tell_each_once(told: tuple[Reports, list[LossPoint]]) -> None:
    some, points = told
    lookers = [threading.Thread(target=lambda: [some.see() for _ in range(500)]) for _ in range(4)]
    for looker in lookers:
        looker.start()
    for step in range(1, 1001):
        some.add({"loss": step}, Moment(step, step))
        Late.known = step - step % 7
    for looker in lookers:
        looker.join()
    some.finish()
    assert steps_of(points) == list(range(1, 1001))


def test_a_device_that_has_failed_does_not_end_the_heartbeat(
    told: tuple[Reports, list[LossPoint]],
) -> None:
    some, points = told
    some.add({"loss": 1}, Moment(1, 1))
    Late.fails = True
    some.see()
    Late.fails = False
    some.finish()
    assert not points
