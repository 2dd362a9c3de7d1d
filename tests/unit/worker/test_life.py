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
    ("error", "go_on"), [(None, False), (ProcessFailed("gone"), False), (LeaseLost("lost"), True)]
)
def test_ranks_that_lost_their_lease_talk_on_as_another_life(
    error: Exception | None, go_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they failed otherwise nobody knows where the others are, and nothing is touched."""
    closed: list[Ranks] = []
    monkeypatch.setattr(Ranks, "close", lambda ranks: closed.append(ranks))
    wish = wished("http://127.0.0.1:1", "run", "one", None, {}, lambda run, job: None)
    assert wish is not None
    life, ranks = Life(wish, Progress, Recall(), None), Ranks()
    life._ranks = ranks
    life.release(failed=True, error=error)
    other = Life(wish, Progress, Recall(), None, life)
    assert not closed and other._ranks is (ranks if go_on else None)
    other.release(failed=False)
    assert closed == [ranks] * go_on
