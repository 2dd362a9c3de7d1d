"""What ``syncline status`` says where there is little to show."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from syncline.cli import watch
from syncline_testing.views import running

NOBODY = "No replica is alive."
OTHERS = "No replica is alive; `syncline replicas ls` lists the others."


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        ({}, NOBODY),
        ({"ended_at": 9.0}, NOBODY),
        ({"ended_at": 9.0, "fragment_rounds": 3}, OTHERS),
    ],
)
def test_other_replicas_are_spoken_of_where_there_are_others(
    shown: dict[str, Any], says: str
) -> None:
    runs = [running("one", **shown)]
    seen = {"control": "here", "runs": runs, "replicas": {}, "sync_services": [], "damaged": []}
    out = io.StringIO()
    Console(file=out, width=100).print(watch._picture(seen))
    assert says in [line.rstrip() for line in out.getvalue().splitlines()]
