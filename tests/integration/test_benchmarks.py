"""The sync service's benchmarks, at sizes that say nothing: they run, and tell all they owe.

As in a clone where the packages are installed: nothing else is on the path.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from syncline_testing.processes import environment

ROOT = Path(__file__).parents[2]
TINY = ("--fragments", "2", "--elements", "5000")


def told(name: str, *arguments: str) -> dict[str, Any]:
    """The last line that a benchmark prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), *TINY, *arguments],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_wire_is_measured_with_both_codecs() -> None:
    found = told("wire.py", "--repeats", "1")
    for codec in ("fp32", "bf16"):
        for name, value in found[codec].items():
            assert math.isfinite(value) and value > 0.0, name
    for name in ("push_ratio", "pull_ratio"):
        assert found[name] == min(found["fp32"][name], found["bf16"][name])
    assert found["durability"] == "async"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_memory_is_measured_with_2_and_with_8_replicas() -> None:
    found = told("memory.py", "--rounds", "1", "--repeats", "1")
    assert found["parameter_bytes"] == 2 * 5000 * 4
    assert 0.0 < found["ratio_2"] < math.inf
    assert found["growth"] == found["ratio_8"] / found["ratio_2"]
