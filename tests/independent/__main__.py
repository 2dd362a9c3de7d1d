"""``python -m independent CONTROL JOURNEY [ARGUMENT...]``: ends well if the page tells true."""

from __future__ import annotations

import sys

from independent import feedback, lives, phase, rounds
from independent.control import Control

JOURNEYS = {
    "averages-in-bf16": rounds.averages_in_bf16,
    "penalties-in-fp32": rounds.penalties_in_fp32,
    "three-ranks": rounds.three_ranks,
    "nothing-is-lost": feedback.nothing_is_lost,
    "two-synchronous-steps": phase.two_synchronous_steps,
    "late-and-fenced": lives.late_and_fenced,
    "refusals": lives.refusals,
    "drained-and-finished": lives.drained_and_finished,
    "beside-another": lives.beside_another,
}


if __name__ == "__main__":
    url, journey, *arguments = sys.argv[1:]
    JOURNEYS[journey](Control(url), *arguments)
    ours = [name for name in sys.modules if name.startswith("syncline")]
    assert not ours, f"no longer independent: {ours}"
