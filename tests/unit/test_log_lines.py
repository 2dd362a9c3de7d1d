"""A line of the log stays one, whoever else writes to the same standard error.

The services of `syncline-sync --shards`, and the ranks of a replica, share it; and in a container
(PYTHONUNBUFFERED) every write goes out by itself, so that a line and its end must be one.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial

import pytest
import structlog

from syncline.train.logs import configure_logs
from syncline_sync import command


class Writes(io.StringIO):
    """Notes each write by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.each: list[str] = []

    def write(self, text: str) -> int:
        self.each.append(text)
        return len(text)


@pytest.mark.parametrize(
    "configure",
    [
        partial(command._configure_logging, as_json=True, name="sync-1"),
        partial(command._configure_logging, as_json=False, name="sync-1"),
        configure_logs,
    ],
)
def test_a_line_is_one_write(
    configure: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = Writes()
    monkeypatch.setattr("sys.stderr", writes)
    configure()
    log = structlog.get_logger()
    log.info("listening", address="sync-1:50061")
    log.warning("away")
    first, second = writes.each
    assert "listening" in first and "away" in second
    assert [one.count("\n") for one in (first, second)] == [1, 1]
    assert first.endswith("\n") and second.endswith("\n")
