"""What all ranks know alike is said once."""

from __future__ import annotations

from structlog.testing import capture_logs

from syncline.voice import voice


def test_rank_0_speaks_for_all() -> None:
    with capture_logs() as logs:
        for rank in range(3):
            voice(rank).info("run.finished", rank=rank)
            voice(rank).warning("leave.early", rank=rank)
    assert [(log["event"], log["rank"]) for log in logs] == [
        ("run.finished", 0),
        ("leave.early", 0),
    ]
