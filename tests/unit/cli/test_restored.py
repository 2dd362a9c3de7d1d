"""Whoever restores a run learns what is left for it to train, and which rounds are its own."""

from __future__ import annotations

import pytest

from syncline.cli.checkpoints import begins
from syncline.cli.runs import run_facts
from syncline_proto.rest import Origin
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


@pytest.mark.parametrize(
    ("revision", "warmup", "says"),
    [
        (9, 0, "0 of each fragment, after 9 until the checkpoint"),
        (9, 100, "0 of each fragment, after 8 until the checkpoint"),
        (14, 100, "5 of each fragment, after 8 until the checkpoint"),
    ],
)
def test_the_rounds_before_the_checkpoint_are_told_apart(
    revision: int, warmup: int, says: str
) -> None:
    origin = Origin(checkpoint="/kept/r-r9", id="0" * 32, revision=9)
    view = running("r", revision=revision, origin=origin)
    shown = view.model_copy(update={"settings": RunSettings(warmup_steps=warmup)})
    assert dict(run_facts(shown))["rounds"] == says
