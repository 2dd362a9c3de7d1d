"""When the benchmark of what Syncline costs between rounds calls its own figure too much."""

from __future__ import annotations

from typing import Any

import pytest

from overhead import asked, shortfall


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({}, None),
        ({"hook_share": 0.0201}, "hook_share is 0.020, over 0.02."),
        ({"hook_share": float("nan")}, "hook_share is nan, over 0.02."),
        ({"hook_share": 0.5, "steps": 199}, None),
        ({"hook_share": 0.5, "ranks": 2}, None),
        ({"step_ratio": 2.0}, None),
        ({"care": {"hook_share": 0.02}}, None),
        ({"care": {"hook_share": 0.0201}}, "care's hook_share is 0.020, over 0.02."),
    ],
)
def test_of_one_rank_too_large_a_share_is_a_shortfall(
    differs: dict[str, Any], said: str | None
) -> None:
    result: dict[str, Any] = {"hook_share": 0.02, "step_ratio": 1.0, "steps": 200, "ranks": 1}
    result["care"] = None
    assert shortfall(result | differs) == said


def test_what_is_asked_for_without_a_word_is_what_the_share_is_asked_of() -> None:
    given = asked([])
    asked_of = {"hook_share": 1.0, "steps": given.steps, "ranks": given.ranks, "care": None}
    assert shortfall(asked_of) and not given.care
