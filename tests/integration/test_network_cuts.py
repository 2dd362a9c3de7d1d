"""Networks that are cut between two hosts of a run: one way and both ways, short and long.

Of four replicas three are cut off at once, each in another way; the fourth never is. Whatever is
cut: no inner step counts twice, rounds go on, and who is back takes part again. What is told to the
control plane late is told once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from network import NetworkUnavailable
from syncline_proto.settings import TimeoutSettings
from syncline_testing.apart import CONTROL, SYNC, Apart, Way
from syncline_testing.course import FRAGMENTS, LEASE_S, Course, course

pytestmark = pytest.mark.timeout(240)

SHORT_S, LONG_S = LEASE_S / 6, 1.1 * LEASE_S

SLOW_MBIT, WIDE = 20, 200
"""Four replicas of a model so wide take a second to push."""
CUTS = 12
DEAD_S = TimeoutSettings().call_s / 2 + TimeoutSettings().connect_s + 2.0
"""By then keepalive has closed a connection on which somebody waits."""


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    try:
        with Apart(tmp_path_factory.mktemp("apart"), replicas=4) as apart:
            yield apart
    except NetworkUnavailable as why:
        pytest.skip(str(why))


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Apart]:
    """Where pushes and pulls are under way for about half of the time."""
    try:
        with Apart(tmp_path, replicas=4, mbit=SLOW_MBIT) as apart:
            yield apart
    except NetworkUnavailable as why:
        pytest.skip(str(why))


def in_three_ways(course: Course, other: int) -> list[Way]:
    """The host hears nothing of one replica, another hears nothing of it, a third neither."""
    unheard, deaf, both = (replica.host for replica in course.replicas[1:])
    return [(unheard, other), (other, deaf), (both, other), (other, both)]


def ends_with_everything(c: Course) -> None:
    """Every step of the one life of each is counted once, in every fragment."""
    everything = {(name, 1): own[0] for name, own in c.ends().items()}
    assert c.counted() == [everything] * len(FRAGMENTS)


@pytest.mark.long
def test_replicas_cut_from_the_service_keep_their_leases_and_bring_in_all_they_did(
    apart: Apart, tmp_path: Path
) -> None:
    with course(apart, tmp_path, "from-service") as c:
        with apart.cut(*in_three_ways(c, SYNC)):
            time.sleep(SHORT_S)
        c.everyone_is_in()
        with apart.cut(*in_three_ways(c, SYNC)):
            assert c.only_the_whole_is_in() == "deadline", "they live, so it waited for them"
        c.everyone_is_in()
        assert set(c.states().values()) == {("alive", 1)}
        ends_with_everything(c)


def are_fenced_and_come_back(apart: Apart, c: Course) -> None:
    """Who is cut from the control plane for longer than a lease."""
    with apart.cut(*in_three_ways(c, CONTROL)):
        c.only_the_whole_is_in()
        assert list(c.states().values()) == [("alive", 1), *[("lost", 1)] * 3]
        c.goes_on()
    c.everyone_is_in()
    assert list(c.states().values()) == [("alive", 1), *[("alive", 2)] * 3]


@pytest.mark.long
def test_replicas_cut_from_the_control_plane_are_fenced_and_come_back_as_new_lives(
    apart: Apart, tmp_path: Path
) -> None:
    with course(apart, tmp_path, "from-control") as c:
        with apart.cut(*in_three_ways(c, CONTROL)):
            time.sleep(SHORT_S)
        c.goes_on()
        assert set(c.states().values()) == {("alive", 1)}
        are_fenced_and_come_back(apart, c)
        steps = c.ends()
        counted = c.counted()
    for of_fragment in counted:
        assert of_fragment[c.whole.name, 1] == steps[c.whole.name][0]
        for name in (replica.name for replica in c.replicas[1:]):
            lost, kept = steps[name]
            assert 0 < of_fragment[name, 1] <= lost
            assert of_fragment[name, 2] == kept


@pytest.mark.long
def test_a_control_plane_cut_from_everybody_loses_nobody(apart: Apart, tmp_path: Path) -> None:
    with course(apart, tmp_path, "control-from-all") as c:
        others = [SYNC, *(replica.host for replica in c.replicas)]
        ways = [way for host in others for way in ((host, CONTROL), (CONTROL, host))]
        with apart.cut(*ways):
            time.sleep(2 * LONG_S)
        c.goes_on()
        time.sleep(LEASE_S)
        c.everyone_is_in()
        assert set(c.states().values()) == {("alive", 1)}
        ends_with_everything(c)


@pytest.mark.long
def test_cuts_amid_pushes_and_longer_than_a_connection_lives_lose_nothing(
    slow: Apart, tmp_path: Path
) -> None:
    draw = random.Random(1)
    with course(slow, tmp_path, "amid", WIDE) as c:
        for _ in range(CUTS):
            time.sleep(draw.uniform(0.1, 1.5))
            with slow.cut(*draw.sample(in_three_ways(c, SYNC), k=2)):
                time.sleep(draw.uniform(0.1, 2.0))
        c.everyone_is_in()
        with slow.cut(*in_three_ways(c, SYNC)):
            time.sleep(DEAD_S)
        c.everyone_is_in()
        assert set(c.states().values()) == {("alive", 1)}
        ends_with_everything(c)


@pytest.mark.long
def test_a_service_cut_from_the_control_plane_goes_on_and_tells_later_each_round_once(
    apart: Apart, tmp_path: Path
) -> None:
    with course(apart, tmp_path, "service-control") as c:
        ways: list[list[Way]] = [
            [(SYNC, CONTROL)],
            [(CONTROL, SYNC)],
            [(SYNC, CONTROL), (CONTROL, SYNC)],
        ]
        for seconds in (SHORT_S, LONG_S):
            for cut in ways:
                before = c.trained()
                with apart.cut(*cut):
                    time.sleep(seconds)
                    if seconds == LONG_S:
                        assert c.trained() > before, "with the last membership"
                c.goes_on()
        assert set(c.states().values()) == {("alive", 1)}
        ends_with_everything(c)


@pytest.mark.long
def test_leased_data_is_trained_once_whoever_is_cut_from_whom(apart: Apart, tmp_path: Path) -> None:
    """The control plane goes on leasing to replicas whose pushes it hears nothing of, and late."""
    with course(apart, tmp_path, "leased", leased=True) as c:
        with apart.cut(*in_three_ways(c, SYNC)):
            assert c.only_the_whole_is_in() == "deadline"
        c.everyone_is_in()
        with apart.cut((SYNC, CONTROL), (CONTROL, SYNC)):
            time.sleep(LONG_S)
        c.goes_on()
        c.everyone_is_in()
        assert set(c.states().values()) == {("alive", 1)}
        steps = c.ends()
        counted = c.counted()
        trained = c.brought_in()
    assert counted == [{(name, 1): own[0] for name, own in steps.items()}] * len(FRAGMENTS)
    read = [one for replica in c.replicas for one in replica.read()]
    assert trained == len(read) == len(set(read))


@pytest.mark.long
def test_leased_data_of_who_is_cut_from_the_control_plane_is_trained_once(
    apart: Apart, tmp_path: Path
) -> None:
    """Others are given what a life holds that goes on training, and that nobody hears of."""
    with course(apart, tmp_path, "leased-control", leased=True) as c:
        are_fenced_and_come_back(apart, c)
        c.ends()
        c.counted()
        trained = c.brought_in()
    read = [one for replica in c.replicas for one in replica.read()]
    assert len(c.whole.read()) < trained <= len(set(read)), "some came back, and nobody wanted it"


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "closed_by"),
    [
        ({"quorum": 1, "grace_seconds": 0.5, "late": {"age_max": 1}}, "quorum"),
        ({"asynchronous": True, "late": {"age_max": 1}}, "push"),
    ],
    ids=["quorum", "asynchronous"],
)
def test_where_rounds_need_not_wait_who_is_cut_off_holds_up_nobody_and_brings_in_all_it_did(
    apart: Apart, tmp_path: Path, how: dict[str, Any], closed_by: str
) -> None:
    with course(apart, tmp_path, closed_by, how=how) as c:
        with apart.cut(*in_three_ways(c, SYNC)):
            time.sleep(SHORT_S)
        c.everyone_is_in()
        with apart.cut(*in_three_ways(c, SYNC)):
            assert c.only_the_whole_is_in() == closed_by
            for _ in range(3):
                c.goes_on()  # beyond the age at which what comes late still counts
        c.everyone_is_in()
        assert set(c.states().values()) == {("alive", 1)}
        steps = c.ends()
        c.takes_in(sum(own[0] for own in steps.values()))
        counted = c.counted()
    assert counted == [{(name, 1): own[0] for name, own in steps.items()}] * len(FRAGMENTS)
