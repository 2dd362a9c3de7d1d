"""When the benchmark of what hides a round calls its own figures wrong."""

from __future__ import annotations

from typing import Any

import pytest

from exposed import PARAMETERS, shortfall


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({}, None),
        ({"overlap": 0.051}, "overlap is 0.051, over 0.05"),
        ({"overlap": 0.06, "streaming": 0.07}, "overlap is 0.060, streaming is 0.070, over"),
        ({"overlap": 0.9, "parameters": 1000}, None),
        ({"overlap": 0.9, "codec": "bf16"}, None),
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
        "parameters": PARAMETERS,
        "codec": "int8",
    }
    told = shortfall(result | differs)
    assert told is None if said is None else told is not None and said in told
