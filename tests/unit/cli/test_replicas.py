"""What ``syncline replicas ls`` says of a replica's pace."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from syncline.cli.replicas import replicas_table
from syncline_proto.rest import ReplicaState, ReplicaView


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ({"pace": 0.987}, "0.99"),
        ({"pace": 0.4, "straggles": True}, "0.40, straggles"),
        (
            {"pace": 0.4, "straggles": True, "step_share": 0.4},
            "0.40, straggles, 40 % of the steps",
        ),
        ({"pace": 0.4, "state": ReplicaState.LOST}, "–"),
    ],
)
def test_a_straggler_is_named_in_its_row(shown: dict[str, Any], said: str) -> None:
    given = {"replica": "one", "incarnation": 1, "state": ReplicaState.ALIVE} | shown
    out = io.StringIO()
    table = replicas_table({"r": [ReplicaView.model_validate(given)]})
    Console(file=out, width=200).print(table)
    heading, row = out.getvalue().splitlines()
    assert said in row and heading.split().count("pace") == 1
    assert row[heading.index("pace") + 4 - len(said) :].startswith(said), "under its heading"
