"""What all ranks know alike is said once."""

from __future__ import annotations

from structlog.testing import capture_logs

from syncline.voice import of_waiting, voice
from syncline_proto.settings import RunSettings


def test_rank_0_speaks_for_all() -> None:
    with capture_logs() as logs:
        for rank in range(3):
            voice(rank).info("run.finished", rank=rank)
            voice(rank).warning("leave.early", rank=rank)
    assert [(log["event"], log["rank"]) for log in logs] == [
        ("run.finished", 0),
        ("leave.early", 0),
    ]


def test_a_wait_is_put_down_to_all_that_it_may_be_due_to_and_to_nothing_else() -> None:
    def said(revision: int, **given: int) -> str:
        return " | ".join(of_waiting(revision, RunSettings.model_validate(given)).values())

    first = said(0, expected_replicas=2)
    assert first.startswith("the first round waits for expected_replicas 2") and "deadline" in first
    assert "min_replicas" not in first
    assert "min_replicas 2 at least" in said(0, expected_replicas=3, min_replicas=2)
    assert "deadline" not in said(0, min_replicas=2), "below its minimum no round closes"
    assert "first round" not in said(1, expected_replicas=2) + said(0)
    assert "fewer than min_replicas 2" in said(1, min_replicas=2)
    assert "min_replicas" not in said(1, expected_replicas=2)
