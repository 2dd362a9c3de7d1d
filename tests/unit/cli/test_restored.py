"""Whoever restores a run learns whether there is anything left for it to train."""

from __future__ import annotations

import pytest

from syncline.cli.checkpoints import begins
from syncline_proto.settings import RunSettings
from syncline_testing.views import running


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (None, "after 30 tokens; replicas may join it."),
        (31, "after 30 tokens; replicas may join it."),
        (30, "its whole token budget (30), so it ends when the first replica joins"),
    ],
)
def test_a_spent_budget_is_told(budget: int | None, says: str) -> None:
    settings = RunSettings(token_budget=budget)
    view = running("r", committed_tokens=30).model_copy(update={"settings": settings})
    said = begins(view)
    assert says in said
    assert ("--set run.token_budget=MORE" in said) == (budget == 30)
