"""A life lets go of what it holds, and of what its ranks talk over where all of them do."""

from __future__ import annotations

import pytest

from syncline.life import Life
from syncline.ranks import Ranks
from syncline.recall import Recall
from syncline.wish import wished
from syncline_proto.errors import LeaseLost, ProcessFailed
from syncline_proto.rest import Progress


@pytest.mark.parametrize(
    ("error", "closes"), [(None, False), (ProcessFailed("gone"), False), (LeaseLost("lost"), True)]
)
def test_ranks_that_lost_their_lease_talk_on_until_another_life_begins(
    error: Exception | None, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they failed otherwise nobody knows where the others are, and nothing is touched."""
    closed: list[Ranks] = []
    monkeypatch.setattr(Ranks, "close", lambda ranks: closed.append(ranks))
    wish = wished("http://127.0.0.1:1", "run", "one", None, {}, lambda run, job: None)
    assert wish is not None
    life = Life(wish, Progress, Recall(), None)
    life._ranks = Ranks()
    life.release(failed=True, error=error)
    assert not closed
    life.part()
    assert closed == [life._ranks] * closes
