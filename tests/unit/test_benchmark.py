"""What the demo's benchmark asks of the demo."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "demo.py"))


@pytest.mark.parametrize(
    ("bits", "seconds", "expected"),
    [
        (3.2, 300.0, None),
        (3.201, 10.0, "ends at 3.201 bits"),
        (float("nan"), 10.0, "ends at nan bits"),
        (None, 10.0, "ends at None bits"),
        (2.0, 301.0, "took 301 s"),
    ],
)
def test_too_many_bits_or_seconds_are_a_shortfall(
    bits: float | None, seconds: float, expected: str | None
) -> None:
    result: dict[str, Any] = {"bits_per_byte_end": bits, "seconds": seconds}
    told = BENCHMARK["shortfall"](result)
    assert told is None if expected is None else expected in told
