"""A run's settings as `syncline runs show` tells them: what is not set, as what it comes to."""

from __future__ import annotations

from typing import Any

import pytest

from syncline.cli.app import run
from syncline.cli.settings import settings_in_words
from syncline_proto.settings import LIVE, RunSettings


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {"late.age_max": "0 (default)", "grace_seconds": "none", "window": "none"}),
        ({"late": {"age_max": 5}, "quorum": 1}, {"late.age_max": "5"}),
        (
            {"quorum": 2},
            {"late.age_max": "2 (default with quorum)", "grace_seconds": "0 (default)"},
        ),
        (
            {"quorum": 2, "overlap_steps": 4},
            {"grace_seconds": "at most half of what overlap_steps hides (default)"},
        ),
        ({"quorum": 2, "grace_seconds": 3}, {"grace_seconds": "3.0"}),
        (
            {"strategy": "async"},
            {
                "late.age_max": "2 (default with asynchronous)",
                "window": "as many as take part (default)",
            },
        ),
        ({"timeouts": {"lease": 3}}, {"timeouts.lease": "3 s"}),
    ],
)
def test_what_is_not_set_is_told_as_what_it_comes_to(
    given: dict[str, Any], told: dict[str, str]
) -> None:
    found = settings_in_words(RunSettings.model_validate(given))
    assert told.items() <= found.items()


def test_the_help_names_all_that_may_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "set", "--help"]) == 0
    named = capsys.readouterr().out.partition("What may change: ")[2].partition(";")[0]
    assert {name.strip(" .*\n") for name in named.split(",")} == LIVE
