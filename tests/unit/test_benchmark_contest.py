"""Whose rounds count in ``round.py``, how many, and what becomes of one that is gone."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

import contest
import systems
from contest import DURABLE, OFF_TURNS_MAX, OURS, Contest, ResultOff
from turns import Referee, Round, RoundFailed

REPEATS, ENOUGH = 9, 4


OFF = -1.0


class Told(Contest):
    """A contest whose systems take what they are told to, in a round or for ever."""

    def __init__(self, seconds: dict[str, list[float | None]]) -> None:
        none: Any = None
        super().__init__(none, none, none, "bf16")
        self._seconds = {name: iter(its) for name, its in seconds.items()}
        self._processes = {OURS: [], DURABLE: []}

    def _start_peer(self, peer: str) -> bool:
        self._processes[peer] = []
        return True

    def _round(self, system: str) -> Round:
        seconds = next(self._seconds[system])
        if seconds is None:
            raise RoundFailed("It was not ready.")
        if seconds == OFF:
            raise ResultOff("It is off.")
        return Round(seconds=seconds, off=0.0)


def rounds(peers: list[float | None], ours: float = 1.0) -> tuple[dict[str, int], dict[str, str]]:
    """How many rounds count of each, and which peers did not come through."""
    mine: list[float | None] = [ours] * (REPEATS + 1 + OFF_TURNS_MAX)
    told = Told({OURS: mine, DURABLE: mine, "gloo": peers})
    taken = told.beside("gloo", REPEATS, ENOUGH)
    assert "gloo" not in told._processes, "it has been stopped"
    return {name: len(its) for name, its in taken.items()}, told.failed


def each(count: int) -> dict[str, int]:
    return {OURS: count, DURABLE: count, "gloo": count}


@pytest.mark.parametrize(
    ("peers", "count"),
    [
        ([9.0, *[2.9] * REPEATS], REPEATS),  # what the first takes does not count
        ([1.0, *[3.0] * REPEATS], ENOUGH),
        ([*[1.0] * (ENOUGH + 1), None], ENOUGH),
        ([*[1.0] * REPEATS, None], REPEATS - 1),
    ],
)
def test_beside_a_slow_peer_or_one_that_stops_enough_rounds_are_enough(
    peers: list[float | None], count: int
) -> None:
    assert rounds(peers) == (each(count), {})


def test_a_peer_that_stops_before_that_is_left_out() -> None:
    assert rounds([*[1.0] * ENOUGH, None]) == ({}, {"gloo": "It was not ready."})


def test_a_turn_in_which_a_peers_result_is_off_is_taken_again_but_not_for_ever() -> None:
    good: list[float | None] = [1.0] * (REPEATS + 1)
    off: list[float | None] = [OFF] * OFF_TURNS_MAX
    assert rounds([*good[:2], *off, *good[2:]]) == (each(REPEATS), {})
    assert rounds([*good[:2], *off, OFF]) == ({}, {"gloo": "It is off."})


def test_a_round_of_ours_that_fails_ends_it() -> None:
    told = Told({OURS: [1.0, None], DURABLE: [1.0, 1.0], "gloo": [1.0, 1.0]})
    with pytest.raises(RoundFailed):
        told.beside("gloo", REPEATS, ENOUGH)


def test_every_peer_has_a_bound_to_what_it_may_be_off() -> None:
    assert set(contest.PEER_OFF_MAX) == set(systems.PEERS)


def test_a_participant_that_is_gone_between_its_turns_fails_the_round(tmp_path: Path) -> None:
    """Its system is to be remembered as failed, and the others go on."""
    lines = ({"system": "gloo", "participant": 0}, {"ready": True})
    with Referee(tmp_path / "gate", 1, 60.0) as referee:
        with socket.socket(socket.AF_UNIX) as participant:
            participant.connect(str(tmp_path / "gate"))
            participant.sendall("".join(json.dumps(line) + "\n" for line in lines).encode())
            referee.wait("gloo", lambda: None)
        with pytest.raises(RoundFailed, match="has gone"):
            referee.round("gloo", lambda: None)
