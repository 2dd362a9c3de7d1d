"""When the benchmark of what hides a round calls its own figures wrong."""

from __future__ import annotations

from typing import Any

import pytest

from exposed import Seen, link_share, shortfall


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({}, None),
        ({"overlap": 0.051}, "overlap is 0.051, over 0.05"),
        ({"overlap": 0.06, "streaming": 0.07}, "overlap is 0.060, streaming is 0.070, over"),
        ({"overlap": 0.9, "link_share": 1.01}, None),
        ({"overlap": 0.9, "link_share": 1.0, "parameters": 1000}, "overlap is 0.900, over"),
        ({"streaming": 0.9, "codec": "bf16"}, "streaming is 0.900, over"),
        ({"streaming": float("nan")}, "streaming is nan, over"),
        ({"compute_share": 0.6}, None),
        ({"compute_share": 0.61, "overlap": 0.9}, "compute_share is 0.610, over 0.6: replicas"),
        ({"compute_share": 0.61, "parameters": 1000}, "compute_share is 0.610"),
        ({"compute_share": float("nan")}, "compute_share is nan"),
    ],
)
def test_a_busy_machine_or_too_long_a_wait_is_a_shortfall(
    differs: dict[str, Any], said: str | None
) -> None:
    result: dict[str, Any] = {
        "blocking": 0.3,
        "layerwise": 0.3,
        "overlap": 0.05,
        "streaming": 0.0,
        "compute_share": 0.4,
        "parameters": 4_000_000,
        "codec": "int8",
        "link_share": 0.2,
    }
    told = shortfall(result | differs)
    assert told is None if said is None else told is not None and said in told


def test_what_fits_the_link_is_what_all_push_or_pull_in_an_interval() -> None:
    """Two replicas; 32 steps of 0.1 s at 100 Mbit/s are 40 MB, each way."""
    both = {"waits": 0.0, "hooks": 0.0, "compute_share": 0.4}
    up = Seen(**both, interval_bytes=20e6, interval_bytes_down=5e6)
    down = Seen(**both, interval_bytes=5e6, interval_bytes_down=24e6)
    assert link_share("100mbit", up) == pytest.approx(1.0)
    assert link_share("100mbit", down) == pytest.approx(1.2)
    assert link_share("1gbit", down) == pytest.approx(0.12)
    assert link_share("loopback", down) == 0.0
