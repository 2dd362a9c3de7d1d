"""Who died is lost in time, and who is not to be heard because we are cut off is not lost."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from syncline_control.core.hearing import UNHEARD_S_MAX, Voice, unheard

HELLO_S, SERVICE_S = 5.0, 15.0
"""How often sync services say hello, and their lease."""

LENGTHS_S = st.lists(st.sampled_from([1.0, 3.0, 10.0, 60.0]), min_size=2, max_size=5)
PHASES = st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6)


def last_beat(until: float, every_s: float, phase: float) -> float:
    """When somebody last said something before ``until`` that does so that often."""
    offset = phase * every_s
    return math.floor((until - offset) / every_s) * every_s + offset


def of_fleet(lengths_s: list[float], phases: list[float], ends: list[float]) -> list[Voice]:
    """Replicas and a sync service, the last, each heard until its own end."""
    service = Voice(last_beat(ends[-1], HELLO_S, phases[-1]), SERVICE_S, True)
    of = zip(lengths_s, phases, ends, strict=False)
    return [*(Voice(last_beat(end, n / 4, phase), n) for n, phase, end in of), service]


@given(LENGTHS_S, PHASES, st.floats(0.0, UNHEARD_S_MAX - 60.0))
def test_cut_off_from_all_we_hold_every_lease_before_it_ends(
    lengths_s: list[float], phases: list[float], cut_s: float
) -> None:
    """Equal ones; a sync service's, which fences nobody, where replicas' are as short."""
    lengths_s = [lengths_s[0]] * len(lengths_s)
    voices = of_fleet(lengths_s, phases, [1000.0] * 6)
    for at, voice in enumerate(voices):
        if voice.length_s < lengths_s[0]:
            continue
        now = max(voice.heard + voice.length_s - voice.length_s / 10, 1000.0 + cut_s)
        assert at in unheard(voices, now)


@given(LENGTHS_S, PHASES, st.data())
def test_who_died_while_anybody_else_goes_on_is_lost_at_its_end(
    lengths_s: list[float], phases: list[float], data: st.DataObject
) -> None:
    lengths_s = [lengths_s[0]] * len(lengths_s)
    dead = data.draw(st.sets(st.integers(0, len(lengths_s) - 1), min_size=1))
    if len(dead) == len(lengths_s):
        dead.pop()
    died = 1000.0
    now = died + lengths_s[0]
    ends = [died if at in dead else now for at in range(len(lengths_s))]
    voices = of_fleet(lengths_s, phases, [*ends, *[now] * (6 - len(ends))])
    assert not dead & set(unheard(voices, now))


@given(st.sampled_from([1.0, 3.0, 10.0, 60.0]), PHASES)
def test_the_only_replica_that_died_is_lost_at_its_end(
    length_s: float, phases: list[float]
) -> None:
    died = 1000.0
    lost = Voice(last_beat(died, length_s / 4, phases[0]), length_s)
    now = lost.heard + length_s
    service = Voice(last_beat(now, HELLO_S, phases[-1]), SERVICE_S, True)
    assert unheard([lost, service], now) == []


def test_all_that_died_are_lost_once_a_service_is_heard_or_the_silence_is_long() -> None:
    a, b, service = Voice(100.0, 3.0), Voice(100.5, 3.0), Voice(99.0, SERVICE_S, True)
    assert unheard([a, b, service], 103.0) == [0, 1]
    assert unheard([a, b, service._replace(heard=104.0)], 104.1) == []
    assert unheard([a, b, service], 100.5 + UNHEARD_S_MAX) == [0, 1, 2]
    assert unheard([a, b, service], 100.6 + UNHEARD_S_MAX) == []
    assert unheard([a, b], 103.0) == [], "without a service nobody is fenced"
    assert unheard([], 1.0) == []
