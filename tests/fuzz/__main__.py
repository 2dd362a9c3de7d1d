"""``python -m fuzz``: the long form. It ends in one line of JSON with the figures."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

from fuzz.arena import Arena, arena
from fuzz.asking import Asking, asking
from fuzz.flood import BUDGET, CONSTANT, GROWTH, PIECES_LONG, drawn, flooded
from fuzz.keeping import Keeping, calls, keeping
from fuzz.requests import openings, pulls
from fuzz.streams import pushes

T = TypeVar("T")


def meet(what: SearchStrategy[T], number: int, examples: int, meets: Callable[[T], None]) -> None:
    """Meet so many examples of a seed; one that fails is made as small as it can be, and shown."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(what)
    def each(one: T) -> None:
        meets(one)

    each()


def fought(folder: Path, number: int, examples: int) -> Arena:
    """Send so many pushes of a seed, one after another."""
    with arena(folder) as (runner, fighter):
        meet(pushes(), number, examples, lambda streams: runner.run(fighter.meets(streams)))
        return fighter


def asked(folder: Path, number: int, examples: int) -> Asking:
    """Send so many pulls of a seed, and a third as many openings: these take the longest."""
    with asking(folder) as (runner, asker):
        for what, count in ((pulls(), examples), (openings(), examples // 3)):
            meet(what, number, count, lambda request: runner.run(asker.meets(request)))
        return asker


def kept(folder: Path, number: int, examples: int) -> Keeping:
    """Make so many calls of a seed that are about checkpoints, one after another."""
    with keeping(folder) as (runner, keeper):
        meet(calls(), number, examples, lambda call: runner.run(keeper.meets(call)))
        return keeper


def main() -> int:
    """Exit code 0 if all is well; else what went wrong, and the seed to see it again."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=3000, help="pushes, one after another")
    parser.add_argument("--flood", type=float, default=60.0, help="seconds of many, twice")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--requests", type=int, default=1000, help="pulls, and openings")
    parser.add_argument("--kept", type=int, default=1000, help="calls that are about checkpoints")
    given = parser.parse_args()
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        fighter = fought(Path(folder) / "arena", given.seed, given.examples)
        print(f"{fighter.examples} pushes, {fighter.entered} entered a round", flush=True)
        asker = asked(Path(folder) / "asked", given.seed, given.requests)
        print(f"{asker.examples} requests, {asker.answered} answered", flush=True)
        keeper = kept(Path(folder) / "kept", given.seed, given.kept)
        print(f"{keeper.examples} about checkpoints, {keeper.answered} answered", flush=True)
        (Path(folder) / "flood").mkdir()
        sent = drawn(given.seed)
        flood = flooded(Path(folder) / "flood", sent, given.seed, given.flood, PIECES_LONG)
    figures = {
        "examples": fighter.examples,
        "entered": fighter.entered,
        "requests": asker.examples,
        "answered": asker.answered,
        "opened": asker.opened,
        "checkpoint_calls": keeper.examples,
        "runs_begun": keeper.begun,
        "refused": fighter.refused + asker.refused + keeper.refused + flood.refused,
        "looks": fighter.looks,
        "flood_calls": flood.calls,
        "budget_bytes": BUDGET,
        "peak_beyond_budget_bytes": flood.beyond_bytes,
        "allowed_bytes": CONSTANT + PIECES_LONG,
        "growth_bytes": flood.growth_bytes,
        "growth_allowed_bytes": GROWTH,
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
