"""``python -m fuzz``: the long form. It ends in one line of JSON with the figures."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import structlog
from hypothesis import HealthCheck, given, seed, settings

from fuzz.arena import Arena, arena
from fuzz.flood import BUDGET, CONSTANT, drawn, flooded
from fuzz.streams import Stream, pushes


def fought(folder: Path, number: int, examples: int) -> Arena:
    """Meet so many examples of a seed; one that fails is made as small as it can be, and shown."""
    with arena(folder) as (runner, fighter):

        @seed(number)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(pushes())
        def meets(streams: tuple[Stream, ...]) -> None:
            runner.run(fighter.meets(streams))

        meets()
        return fighter


def main() -> int:
    """Exit code 0 if all is well; else what went wrong, and the seed to see it again."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=3000, help="pushes, one after another")
    parser.add_argument("--flood", type=float, default=60.0, help="seconds of many at a time")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    asked = parser.parse_args()
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        fighter = fought(Path(folder) / "arena", asked.seed, asked.examples)
        print(f"{fighter.examples} examples, {fighter.entered} entered a round", flush=True)
        (Path(folder) / "flood").mkdir()
        flood = flooded(Path(folder) / "flood", drawn(asked.seed), asked.seed, asked.flood)
    figures = {
        "examples": fighter.examples,
        "entered": fighter.entered,
        "refused": fighter.refused + flood.refused,
        "looks": fighter.looks,
        "flood_calls": flood.calls,
        "budget_bytes": BUDGET,
        "peak_beyond_budget_bytes": flood.beyond_bytes,
        "allowed_bytes": CONSTANT,
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
